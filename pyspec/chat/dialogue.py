"""The conversation of a chat, and the prompt made from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspec.errors import ContextOverflow
from pyspec.screen.words import counted
from pyspec.text.messages import Message

if TYPE_CHECKING:  # --help needs none of these
    from pyspec.text.parts import Result, Token

Encode = Callable[[Sequence[Message]], list[int]]

FULL_HINT = "/clear or /undo makes room, `/set trim on` drops the oldest turns, -c N has more room"


@dataclass
class Exchange:
    """A question, and its answer once there is one."""

    user: str
    # its tokens lack the last one, and all if it was read from a file or made by another model
    answer: Result | None = None
    seed: int = 0  # the sampler's

    def asked(self) -> Message:
        """The question as a turn."""
        return Message(role="user", content=self.user)


@dataclass
class Conversation:
    """A system prompt and exchanges, oldest first."""

    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def last_answer(self) -> Result | None:
        return self.exchanges[-1].answer if self.exchanges else None

    def forget_tokens(self) -> None:
        """Keep only the text of answers: another model has other tokens, and another speed."""
        from msgspec.structs import replace  # noqa: PLC0415 - see above

        for exchange in self.exchanges:
            if exchange.answer is not None:
                exchange.answer = replace(exchange.answer, tokens=(), speculation={})

    def messages(self, first: int = 0) -> list[Message]:
        """The turns from exchange `first` on, after the system turn."""
        turns = [Message(role="system", content=self.system)] if self.system is not None else []
        for exchange in self.exchanges[first:]:
            turns.append(exchange.asked())
            if exchange.answer is not None:
                turns.append(_turn(exchange.answer))
        return turns


def fit(talk: Conversation, encode: Encode, n_ctx: int, *, trim: bool) -> tuple[list[int], int]:
    """Make the prompt for the newest question; return it and how many of the oldest exchanges were dropped.

    With `trim`, exchanges are dropped when less than an eighth of the context is left for the answer,
    until three eighths are free: dropping few at a time would reread the rest in every turn.
    The system turn and the newest question stay. Raises ContextOverflow if they do not fit.
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


def _turn(answer: Result) -> Message:
    """Return an answer as a turn, with its tokens as generated, so that the KV cache stays a valid prefix."""
    message = Message(role="assistant", content=answer.text)
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tokens:
        message["tokens"] = [token.id for token in answer.tokens]
    return message


def unended(answer: Result, piece: Callable[[int], bytes]) -> Result:
    """Return an answer without the tokens that ended it, as a conversation keeps it."""
    tokens, text = answer.tokens, answer.text
    kept = whole(tokens, piece) if answer.reasoning else spoken(tokens, text, piece)
    from msgspec.structs import replace  # noqa: PLC0415 - see above

    return replace(answer, tokens=kept)


def why_cut(answer: Result, most: int, n_ctx: int, longer: str, wider: str) -> str:
    """Say why an answer was cut and what to do about it; empty if it ended by itself.

    most: the token limit, 0 for none. longer, wider: what to do for more tokens, and for more context.
    """
    where = " inside its reasoning" if answer.reasoning_cut else ""
    if answer.finish_reason == "length" and most > 0:
        return f"stopped at {counted(most, 'token')}{where}; {longer}"
    if answer.finish_reason == "context":
        return f"stopped{where}: the context of {n_ctx} tokens is full; {wider}"
    return f"the answer ended{where}" if where else ""


def spoken(tokens: Sequence[Token], text: str, piece: Callable[[int], bytes]) -> tuple[Token, ...]:
    """Return the tokens that make up `text`, without the token or stop string that ended it."""
    size, most = 0, len(text.encode("utf-8", "replace"))
    for n, token in enumerate(tokens):
        data = piece(token.id)
        size += len(data)
        if size > most or not data:
            return tuple(tokens[:n])
    return tuple(tokens)


def whole(tokens: Sequence[Token], piece: Callable[[int], bytes]) -> tuple[Token, ...]:
    """Return the tokens of an answer with reasoning, without the control token that ended it."""
    return tuple(tokens[:-1] if tokens and not piece(tokens[-1].id) else tokens)
