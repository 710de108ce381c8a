"""What the chat asks of a model: prompts as tokens, answers as pieces, and what an answer did."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspec.rules import Verification
from pyspec.sampling import Sampling
from pyspec.stream import Piece
from pyspec.template import Message

Progress = Callable[[int, int], None]
"""Called with (tokens read, tokens to read) while a prompt is read."""


@dataclass(frozen=True)
class Ask:
    """One answer that is wanted.

    prompt: token ids. max_tokens: None for as many as fit. length, draft_max: how drafts are cut,
    None for the model's own way. plain_first: tokens to decode plainly before speculation starts,
    None to let the model measure its plain rate where it does not know it yet.
    """

    prompt: Sequence[int]
    sampling: Sampling
    rule: Verification
    max_tokens: int | None = None
    length: str | None = None
    draft_max: int | None = None
    plain_first: int | None = None


@dataclass(frozen=True)
class AnswerStats:
    """What one answer did.

    tokens: emitted, of them plain_tokens before speculation started. rate: tokens a second after
    the plain start (of all where the answer ended in it). plain_rate: tokens a second of the same
    target without speculation, measured in this session; None until it is known. drafted,
    verified, accepted, relaxed: tokens; nats: sum of the gaps of relaxed ones. prompt_kept: prompt
    tokens that were in the context already. first_token_ms, total_ms: from the call on.
    """

    tokens: int
    plain_tokens: int
    rate: float
    plain_rate: float | None
    drafted: int
    verified: int
    accepted: int
    relaxed: int
    nats: float
    mean_length: float
    prompt_tokens: int
    prompt_kept: int
    first_token_ms: float
    total_ms: float
    rule: str
    draft: str
    companion: str

    @property
    def speedup(self) -> float | None:
        """Rate over the plain rate, or None where one of them was not measured."""
        speculated = self.tokens > self.plain_tokens and self.draft != "none"
        return self.rate / self.plain_rate if self.plain_rate and speculated else None


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

    def sha256(self) -> str:
        """Hash of the target's file, in hex."""

    def describe(self) -> list[tuple[str, str]]:
        """Names and values that say what is loaded."""
