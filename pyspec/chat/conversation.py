"""The conversation, exchanges of question and answer as messages and as a prompt that fits, and what it asks of a model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from pyspec.errors import ContextOverflow
from pyspec.llama import Piece
from pyspec.rules import Verification
from pyspec.sampling import Sampling
from pyspec.template import Message
from pyspec.tokens import Token


class SavedModel(msgspec.Struct):
    """The target a conversation was held with; the hash is empty where a large file was not hashed."""

    name: str
    sha256: str
    path: str = ""

    def is_of(self, other: SavedModel) -> bool:
        """Whether both are known to be one target, wherever its file lies."""
        return bool(self.sha256) and (self.name, self.sha256) == (other.name, other.sha256)


Progress = Callable[[int, int], None]
"""Called with (tokens read, tokens to read) while a prompt is read."""


@dataclass(frozen=True)
class Ask:
    """One answer that is wanted.

    prompt: token ids. max_tokens: None for as many as fit. length, draft_max: how drafts are cut,
    None for the model's own setting.
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


# -- exchanges ---------------------------------------------------------------------------------------------------------


Encode = Callable[[Sequence[Message]], list[int]]

FULL_HINT = "/clear or /undo makes room, `/set trim on` drops the oldest turns, -c N has more room"


@dataclass(frozen=True)
class Reply:
    """What the model said: the text, and the tokens it was generated as.

    tokens: without the one that ended the answer; empty where they are not known, as those of
    another model. seed: of the sampler.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    finish_reason: str | None = None
    seed: int = 0
    stats: AnswerStats | None = None

    def message(self) -> Message:
        """The turn for a template; as generated, so that what the context holds stays a prefix."""
        if not self.tokens:
            return Message(role="assistant", content=self.text)
        ids = [token.id for token in self.tokens]
        return Message(role="assistant", content=self.text, tokens=ids)


@dataclass
class Exchange:
    """A question, and its answer once there is one."""

    user: str
    answer: Reply | None = None


@dataclass
class Conversation:
    """A system text and whole exchanges, oldest first."""

    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def last_answer(self) -> Reply | None:
        """The newest answer."""
        return self.exchanges[-1].answer if self.exchanges else None

    def messages(self, first: int = 0) -> list[Message]:
        """The turns from exchange `first` on, after the system turn."""
        turns = [Message(role="system", content=self.system)] if self.system is not None else []
        for exchange in self.exchanges[first:]:
            turns.append(Message(role="user", content=exchange.user))
            if exchange.answer is not None:
                turns.append(exchange.answer.message())
        return turns

    def question(self) -> list[Message]:
        """The turns up to the newest question, its answer left out."""
        turns = self.messages()
        return turns[:-1] if self.last_answer is not None else turns


def fit(talk: Conversation, encode: Encode, n_ctx: int, *, trim: bool) -> tuple[list[int], int]:
    """The prompt for the newest question, and how many of the oldest exchanges were dropped for it.

    With `trim`, exchanges go when less than an eighth of the context is left for the answer, and
    then until three eighths are: dropping few at a time would have the rest read again each turn.
    The system turn and the newest question stay. Raises ContextOverflow where they do not fit.
    """
    prompt = encode(talk.messages())
    dropped = 0
    if trim and len(prompt) > n_ctx - n_ctx // 8:
        while len(prompt) > n_ctx - 3 * n_ctx // 8 and dropped + 1 < len(talk.exchanges):
            dropped += 1
            prompt = encode(talk.messages(first=dropped))
    if len(prompt) >= n_ctx:
        raise ContextOverflow(n_ctx, len(prompt), FULL_HINT)
    del talk.exchanges[:dropped]
    return prompt, dropped


def spoken(tokens: Sequence[Token], text: str, piece: Callable[[int], bytes]) -> tuple[Token, ...]:
    """The tokens that make up `text`: without what ended it, be it a token or a stop string."""
    size, most = 0, len(text.encode("utf-8", "replace"))
    for n, token in enumerate(tokens):
        data = piece(token.id)
        size += len(data)
        if size > most or not data:
            return tuple(tokens[:n])
    return tuple(tokens)
