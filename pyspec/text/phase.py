"""The part of an answer in which the margin rule may relax tokens: its reasoning, as its family marks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspec.text.channels import ENDS
from pyspec.text.notation import Notation
from pyspec.text.stream import begun


def closers(notation: Notation) -> tuple[str, ...]:
    """Return the texts that may end reasoning: its closing marks, and those that begin a call."""
    if notation.channels:
        return ENDS
    own = notation.reasoning.close if notation.reasoning else ()
    return tuple(filter(None, (*own, *notation.calls.opens)))


class ReasoningPhase:
    """Follows an answer, and says whether a draft lies within its reasoning.

    reader: an `AnswerReader` of this answer. ends: see `closers`. piece: bytes of a token, marks included.
    """

    def __init__(self, reader: Any, ends: Sequence[str], piece: Callable[[int], bytes]) -> None:
        self._reader, self._ends, self._piece = reader, tuple(ends), piece
        self._longest = max((len(end.encode()) for end in ends), default=0)
        self._tail = b""  # a mark may have begun in it

    def follow(self, tokens: Sequence[int]) -> None:
        """Go on by these tokens of the answer."""
        self._reader.push(tokens)
        self._tail = self._with(tokens)[-self._longest :]

    def covers(self, drafted: Sequence[int]) -> bool:
        """Whether the answer is inside reasoning, and neither ends it with these tokens nor may be about to."""
        if not self._reader.inside:
            return False
        text = self._with(drafted).decode("utf-8", "replace")
        return not begun(text, self._ends) and not any(end in text for end in self._ends)

    def _with(self, tokens: Sequence[int]) -> bytes:
        return self._tail + b"".join(map(self._piece, tokens))
