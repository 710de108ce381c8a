"""The result of an answer, in every interface: what it says, why it ended, its usage and what speculation did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from typing_extensions import Self

from pyspec.errors import PyspecError
from pyspec.text.parts import AnswerPart, Piece, Token, TokenLogprobs, WholeAnswer


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one answer and its prompt."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def of(cls, prompt: int, answer: int) -> Usage:
        """Usage from the tokens of prompt and answer."""
        return cls(prompt, answer, prompt + answer)


class Result(msgspec.Struct, kw_only=True):
    """One answer.

    Attributes:
        text: The content, without `reasoning` and `calls`.
        reasoning: What the model thought before it.
        reasoning_cut: Whether the answer ended inside reasoning.
        reasoned: Tokens of the reasoning.
        stop_string: The stop string that ended the answer.
        calls: Function calls, in OpenAI's form.
        finish_reason: "stop", "tool_calls", "length", "context", "cancelled", "error", or None if there was no answer.
        usage: Tokens of prompt and answer.
        speculation: The block that `AnswerOptions.block` makes; empty if unknown.
        tokens: The answer's tokens, if known; not stored for records.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_cut: bool = False
    reasoned: int = 0
    stop_string: str | None = None
    calls: list[dict[str, Any]] = []
    finish_reason: str | None = None
    usage: Usage = Usage()
    speculation: dict[str, Any] = {}
    tokens: tuple[Token, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[AnswerPart], **known: Any) -> Self:
        """Join the parts of an answer.

        Args:
            parts: Content, reasoning and calls, in any pieces.
            known: The other fields.
        """
        answer = WholeAnswer.of(parts)
        calls = [call.as_openai() for call in answer.calls]
        return cls(text=answer.content, reasoning=answer.reasoning, calls=calls, **known)

    @property
    def rate(self) -> float:
        """Tokens per second after the prompt was read; 0 if unknown."""
        return float(self.speculation.get("timings", {}).get("tokens_per_second", 0.0))

    def message(self) -> dict[str, Any]:
        made: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            made["reasoning_content"] = self.reasoning
        if self.calls:
            made |= {"content": self.text or None, "tool_calls": self.calls}
        return made


class Failure(msgspec.Struct, frozen=True):
    """Why a record has no answer: the exception's name and message."""

    type: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception; one from outside this package is named in the message."""
        if isinstance(error, PyspecError):
            return cls(type(error).__name__, str(error))
        return cls("InputError", f"the record cannot be used: {type(error).__name__}: {error}")


class RecordResult(Result, kw_only=True, omit_defaults=True):
    """One record, answered or failed.

    A journal stores it as JSON without default values; journals of earlier versions, which have all fields but `tokens`, can
    still be read.

    Attributes:
        index: Place of the record among the inputs, from 0.
        id: The record's id.
        prompt_sha256: Hash of what the record asks.
        error: Why there is no answer.
        created: When it was answered, in seconds since 1970, for OpenAI's format; 0 elsewhere.
    """

    index: int
    id: str
    prompt_sha256: str
    error: Failure | None = None
    created: int = 0


def result_of(pieces: Sequence[Piece], block: dict[str, Any] | None) -> Result:
    """Join the pieces of an answer; one cut by an error has the reason `error`.

    block: its `speculation`, None if unknown.
    """
    last = pieces[-1] if pieces else Piece(())
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    known = {} if block is None else block
    return Result.of(
        (part for piece in pieces for part in piece.parts),
        finish_reason=last.finish_reason or "error",
        reasoning_cut=last.reasoning_cut,
        usage=Usage.of(known.get("prompt_tokens", 0), len(tokens)),
        speculation=known,
        tokens=tokens,
    )


Likely = Sequence[tuple[Token, TokenLogprobs | None]]
"""Tokens and their log-probabilities; None for a prompt's first token."""


def chat_logprobs(piece: Callable[[int], bytes], likely: Likely) -> list[dict[str, Any]]:
    """Tokens' log-probabilities in the format of a chat's choice."""

    def entry(token: int, value: float) -> dict[str, Any]:
        data = piece(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": value, "bytes": list(data)}

    return [
        {**entry(token.id, at.value), "top_logprobs": [entry(*pair) for pair in at.top]}
        for token, at in likely
        if at is not None
    ]
