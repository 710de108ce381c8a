"""A budget for reasoning: after a number of tokens, an answer's reasoning is ended as its family ends it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspec.text.channels import CHANNEL, MESSAGE, START
from pyspec.text.reasoning import THINK

if TYPE_CHECKING:
    from pyspec.text.answer import AnswerReader, Speech
    from pyspec.text.notation import Notation

_TRIES = 3
"""How often reasoning is ended in an answer; a model that begins it again after that is left alone."""

_HURRY = "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now."
"""What Qwen3 was trained to read before the end of reasoning that was cut."""


@dataclass(frozen=True)
class ReasoningLimit:
    """A limit on the reasoning of one answer."""

    tokens: int
    functions: Mapping[str, Any] = field(default_factory=dict)
    """Those that may be called."""
    goes_on: bool = False
    """Whether the prompt ends with content of the answer."""

    def budget(self, speech: Speech, prompt: Sequence[int]) -> Budget | None:
        """Return the budget of the answer to a prompt; None for a model that does not mark its reasoning."""
        end = speech.ids_of(closing(speech.notation, speech.architecture))
        if not end:
            return None
        reader = speech.reader(prompt, functions=self.functions, goes_on=self.goes_on)
        return Budget(reader, self.tokens, end, speech.piece)


def closing(notation: Notation, architecture: str = "") -> str:
    """Return the text that ends reasoning; empty if the model has no marks for it."""
    if notation.channels:
        return f"<|end|>{START}assistant{CHANNEL}final{MESSAGE}"
    if notation.reasoning is None:
        return ""
    if notation.reasoning != THINK:
        return notation.reasoning.close[0]
    hurry = _HURRY if architecture.startswith("qwen3") else ""
    return f"{hurry}\n{THINK.close[0]}\n\n"


class Budget:
    """Follows an answer, and says which token has to come next once its reasoning is to end.

    reader: of this answer. most: tokens of reasoning. end: tokens that end it. piece: bytes of a token.
    """

    def __init__(
        self, reader: AnswerReader, most: int, end: Sequence[int], piece: Callable[[int], bytes]
    ) -> None:
        self._reader, self._most, self._end, self._piece = reader, most, list(end), piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._due: list[int] = []
        self._tries = _TRIES
        self._look()

    @property
    def next(self) -> int | None:
        """The token that has to come next; None for any."""
        return self._due[0] if self._due else None

    def accept(self, token: int) -> None:
        if self._due and self._due.pop(0) != token:
            self.give_up()
        if self._due or self._tries:
            self._reader.push([token])
            self._decoder.decode(self._piece(token))
        if not self._due:
            self._look()

    def give_up(self) -> None:
        """Let the answer go on as it will: something else forbids the end."""
        self._due, self._tries = [], 0

    def _look(self) -> None:
        spent = self._reader.inside and self._reader.reasoned >= self._most
        # half a character would stay half
        if spent and self._tries and not self._decoder.getstate()[0]:
            self._due, self._tries = list(self._end), self._tries - 1
