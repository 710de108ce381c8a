"""OpenAI's chat and text completions: responses, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec

from pyspec.requests.bodies import ChatBody, CompletionBody
from pyspec.serve.apis.interface import (
    PING,
    PROMPT_TOO_LONG,
    Interface,
    data_event,
    openai_refusal,
)
from pyspec.serve.pending import Choice, PendingRequest

_TEXT = {"content"}
_PLACE = "\0text\0"
"""Placeholder for the text in a chunk that is encoded once; NUL occurs in no name."""


def whole(pending: PendingRequest, choices: list[Choice]) -> dict[str, Any]:
    """The body of a response that is not streamed."""
    body = pending.frame([choice.whole() for choice in choices])
    blocks = [choice.block for choice in choices]
    block = blocks[0] if len(blocks) == 1 else {"choices": blocks}
    return {**body, "usage": _usage(choices), "speculation": block}


async def events(pending: PendingRequest) -> AsyncIterator[bytes]:
    """The chunks of all choices as they arrive, then `[DONE]`, as server-sent events.

    A choice sends nothing before its first text: until then another replica could still answer.
    """
    choices = pending.choices()
    writers = [_ChunkWriter(choice) for choice in choices]
    async for choice in pending.updates(choices):
        if choice is None:
            yield PING
            continue
        for each in writers[choice.index].events():
            yield each
    if (pending.body.stream_options or {}).get("include_usage"):
        yield data_event({**pending.frame([], chunk=True), "usage": _usage(choices)})
    yield b"data: [DONE]\n\n"


class _ChunkWriter:
    """Writes the chunks of a choice; a chat's first one has the role. Most differ only in their text, and share the rest."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        made = data_event(choice.chunk({"content": _PLACE}))
        self._head, _, self._tail = made.partition(msgspec.json.encode(_PLACE))
        self._first: dict[str, Any] | None = None
        if choice.pending.is_chat:
            self._first = choice.chunk({"role": "assistant", "content": ""})

    def events(self) -> Iterator[bytes]:
        """Take what arrived as events."""
        deltas, ended = self._choice.deltas(), self._choice.result is not None
        if self._first and (deltas or ended):
            yield data_event(self._first)
            self._first = None
        yield from map(self._written, deltas)
        if ended:
            yield data_event(self._choice.last())

    def _written(self, delta: dict[str, Any]) -> bytes:
        if delta.keys() != _TEXT or not self._choice.bare:
            return data_event(self._choice.chunk(delta))
        return self._head + msgspec.json.encode(delta["content"]) + self._tail


def _usage(choices: Sequence[Choice]) -> dict[str, Any]:
    results = [choice.result for choice in choices]
    firsts = results[:: choices[0].pending.body.n or 1]  # the prompt of several choices counts once
    prompt = sum(result.usage.prompt_tokens for result in firsts)
    kept = sum(result.speculation.get("prompt_kept", 0) for result in firsts)
    answer = sum(result.usage.completion_tokens for result in results)
    reasoned = sum(result.reasoned for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": kept},
        "completion_tokens_details": {"reasoning_tokens": reasoned},
    }


def broken(status: int, code: str | None, message: str) -> bytes:
    """The last event of a stream that fails."""
    return data_event(openai_refusal(status, code, message))


CHATS = Interface("chat", "chatcmpl-", ChatBody, whole, events, openai_refusal, broken)
TEXTS = Interface(
    "completion", "cmpl-", CompletionBody, whole, events, openai_refusal, broken,
    too_long=PROMPT_TOO_LONG,
)  # fmt: skip
