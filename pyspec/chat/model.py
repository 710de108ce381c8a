"""What the chat asks of a model: prompts as tokens, answers as pieces, and what an answer did."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspec.rules import Verification
from pyspec.sampling import Sampling
from pyspec.stream import Piece
from pyspec.template import Message

if TYPE_CHECKING:
    from pyspec.chat.files import SavedModel

Progress = Callable[[int, int], None]
"""Called with (tokens read, tokens to read) while a prompt is read."""


@dataclass(frozen=True)
class Ask:
    """One answer that is wanted.

    prompt: token ids. max_tokens: None for as many as fit. length, draft_max: how drafts are cut,
    None for the model's own way.
    """

    prompt: Sequence[int]
    sampling: Sampling
    rule: Verification
    max_tokens: int | None = None
    length: str | None = None
    draft_max: int | None = None


@dataclass(frozen=True)
class AnswerStats:
    """What one answer did: the `speculation` block of its result, and where its time went, in ms."""

    block: Mapping[str, Any]
    timings: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Tokens a second after the prompt was read."""
        return self.timings["tokens_per_second"]

    @property
    def rule(self) -> str:
        """Name of the rule in force."""
        return str(self.block["verification"])


class ChatModel(Protocol):
    """A model to talk with. One answer at a time; `cancel` alone may come from another thread."""

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds."""

    @property
    def draft(self) -> str:
        """Name of what drafts, or none."""

    @property
    def companion(self) -> str:
        """Name of the companion, or none."""

    @property
    def name(self) -> str:
        """Name of the target's file."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages, open for the next answer."""

    def is_text(self, token: int) -> bool:
        """Whether an id stands for bytes of text: not out of range, not a control token."""

    def piece(self, token: int) -> bytes:
        """Bytes of a token."""

    def answer(self, ask: Ask, progress: Progress | None = None) -> Generator[Piece, None, None]:
        """Answer; the last piece has a finish_reason. Closing it early is allowed."""

    def cancel(self) -> None:
        """End the answer in flight soon, with finish_reason "cancelled"."""

    def stats(self) -> AnswerStats | None:
        """What the last answer did; None where it did nothing."""

    def use(self, *, draft: str | None = None, companion: str | None = None) -> None:
        """Draft or judge with something else. On an error the former stay in use."""

    def target(self) -> SavedModel:
        """Name and hash of the target's file."""

    def describe(self) -> list[tuple[str, str]]:
        """Names and values that say what is loaded."""
