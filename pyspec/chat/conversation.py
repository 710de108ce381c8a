"""The conversation: exchanges of question and answer, as messages and as a prompt that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspec.chat.model import AnswerStats
from pyspec.errors import ContextOverflow
from pyspec.template import Message
from pyspec.tokens import Token

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
