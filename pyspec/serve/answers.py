"""What answers become: OpenAI's bodies, or chunks in events for readers that may be slow or gone."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.batch.bodies import CHAT, body_of, choice_of, openai_reason, split_calls
from pyspec.errors import AnswerFailed
from pyspec.text import overlap

if TYPE_CHECKING:
    from pyspec.batch.jobs import Delta, Job, Likely
    from pyspec.batch.records import Result
    from pyspec.tokens import Token

_CALL = "<tool_call>"


class Inbox:
    """What an answer's reader has not taken yet; for the loop's thread only."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.finished = False
        self._deltas: list[Delta] = []
        self._arrived = asyncio.Event()

    def put(self, delta: Delta) -> None:
        """Add what a round brought."""
        self._deltas.append(delta)
        self.finished = self.finished or delta.result is not None
        self._arrived.set()

    async def take(self) -> list[Delta]:
        """All that has arrived since, at least one; the last of all has the result."""
        while not self._deltas:
            self._arrived.clear()
            await self._arrived.wait()
        taken, self._deltas = self._deltas, []
        return taken


@dataclass
class PendingRequest:
    """A request that was understood: its body, its answers in flight, and names for them. created: in seconds since 1970."""

    body: Any
    inboxes: list[Inbox]
    name: str
    model: str
    piece: Callable[[int], bytes]
    about: dict[str, Any]
    done: Callable[[Result, dict[str, float]], None]
    begun: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_chat(self) -> bool:
        """Whether a chat goes on, and no text."""
        return bool(self.body.form == CHAT)

    def frame(self, choices: list[dict[str, Any]], *, chunk: bool = False) -> dict[str, Any]:
        """A response's body around its choices, or the body of a chunk of it."""
        body = body_of(self.body.form, self.name, self.model, self.created, choices)
        return {**body, "object": "chat.completion.chunk"} if chunk and self.is_chat else body

    @property
    def tools(self) -> bool:
        """Whether the answer may be a call."""
        return bool(getattr(self.body, "tools", None)) and self.body.tool_choice != "none"

    @property
    def details(self) -> bool:
        """Whether each token's source and gap were asked for."""
        return bool((self.body.speculation or {}).get("tokens"))


class Choice:
    """One answer of a request as it grows."""

    def __init__(self, asked: PendingRequest, index: int) -> None:
        self.asked, self.index, self.inbox = asked, index, asked.inboxes[index]
        self.result: Any = None
        """The `Result`, at the end."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = 0.0

    async def updates(self) -> AsyncIterator[tuple[str, list[Any], list[Any]]]:
        """New text, its tokens' log-probabilities and details, a round or more at a time. Raises AnswerFailed."""
        while self.result is None:
            deltas = await self.inbox.take()
            self._first = self._first or time.perf_counter()
            self.result = deltas[-1].result
            if self.result is not None and self.result.error is not None:
                raise AnswerFailed(self.result.error.message, self.result.error.type)
            likely = [pair for d in deltas for pair in zip(d.tokens, d.likely)]
            tokens = [token for d in deltas for token in d.tokens] if self.asked.details else []
            yield "".join(d.text for d in deltas), likely, [self._detail(each) for each in tokens]

    def _detail(self, token: Token) -> dict[str, Any]:
        text = self._decoder.decode(self.asked.piece(token.id))
        made = {"text": text, "source": token.source.label, "gap": round(token.gap, 4)}
        if token.preferred != token.id:
            made["preferred"] = self.asked.piece(token.preferred).decode("utf-8", "replace")
        return made

    def block(self) -> dict[str, Any]:
        """The `speculation` block; and the request's owner hears of the end."""
        result: Result = self.result
        end, asked = time.perf_counter(), self.asked
        first = self._first or end
        n, seconds = result.usage.completion_tokens, max(1e-6, end - first)
        timings = {
            "first_token_ms": round(1e3 * (first - asked.begun), 2),
            "total_ms": round(1e3 * (end - asked.begun), 2),
            "tokens_per_second": round(max(0, n - 1) / seconds, 2),
        }
        asked.done(result, timings)
        return {**result.speculation, **asked.about, "timings": timings}


# -- whole -----------------------------------------------------------------------------------------


async def whole(asked: PendingRequest) -> dict[str, Any]:
    """The body of a response that is not streamed. Raises AnswerFailed."""
    choices, blocks, usage = [], [], {"prompt_tokens": 0, "completion_tokens": 0}
    for i in range(len(asked.inboxes)):
        choice = Choice(asked, i)
        likely: list[Any] = []
        details: list[Any] = []
        async for _, more, new in choice.updates():
            likely += more
            details += new
        result = choice.result
        shown = choice_of(asked.body.form, i, result, tools=asked.tools)
        if asked.body.alternatives is not None:
            shown["logprobs"] = logprobs(asked, likely)
        blocks.append(choice.block())
        if details:
            blocks[-1]["tokens"] = details
        choices.append(shown)
        _count(usage, result, i, asked)
    body = asked.frame(choices)
    block = blocks[0] if len(blocks) == 1 else {"choices": blocks}
    return {**body, "usage": _totalled(usage), "speculation": block}


def _count(usage: dict[str, int], result: Result, index: int, asked: PendingRequest) -> None:
    if index % (asked.body.n or 1) == 0:  # the prompt of several choices counts once
        usage["prompt_tokens"] += result.usage.prompt_tokens
    usage["completion_tokens"] += result.usage.completion_tokens


def _totalled(usage: dict[str, int]) -> dict[str, int]:
    return {**usage, "total_tokens": sum(usage.values())}


# -- streamed --------------------------------------------------------------------------------------


class _Calls:
    """Text of an answer that may turn into calls: what begins like one is held back until the end."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        self._held += text
        at = self._held.find(_CALL)
        if at < 0:
            at = len(self._held) - overlap(self._held, _CALL)
        shown, self._held = self._held[:at], self._held[at:]
        return shown

    def finish(self, name: str) -> tuple[str, list[dict[str, Any]]]:
        return split_calls(self._held, name)


async def streamed(asked: PendingRequest, index: int) -> AsyncIterator[dict[str, Any]]:
    """The chunks of one choice."""
    choice, calls = Choice(asked, index), _Calls() if asked.tools else None
    if asked.is_chat:
        yield _chunk(asked, index, {"role": "assistant", "content": ""})
    async for text, likely, details in choice.updates():
        shown = calls.push(text) if calls is not None else text
        if shown or likely or details:
            yield _chunk(asked, index, {"content": shown}, likely=likely, details=details)
    result = choice.result
    reason = openai_reason(result.finish_reason)
    if calls is not None:
        rest, found = calls.finish(f"{asked.name}-{index}")
        if rest:
            yield _chunk(asked, index, {"content": rest})
        if found:
            numbered = [{"index": i, **call} for i, call in enumerate(found)]
            yield _chunk(asked, index, {"tool_calls": numbered})
            reason = "tool_calls"
    last = _chunk(asked, index, {} if asked.is_chat else {"content": ""}, reason=reason)
    yield {**last, "speculation": choice.block(), "_usage": result}


def _chunk(
    asked: PendingRequest,
    index: int,
    delta: dict[str, Any],
    *,
    reason: str | None = None,
    likely: Sequence[Any] = (),
    details: Sequence[Any] = (),
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
    choice |= {"delta": delta} if asked.is_chat else {"text": delta["content"]}
    if likely:
        choice["logprobs"] = logprobs(asked, likely)
    body = asked.frame([choice], chunk=True)
    return {**body, "tokens": list(details)} if details else body


def usage_chunk(asked: PendingRequest, results: Sequence[Result]) -> dict[str, Any]:
    """The chunk after the last one, for clients that asked for it."""
    usage = {"prompt_tokens": 0, "completion_tokens": 0}
    for i, result in enumerate(results):
        _count(usage, result, i, asked)
    return {**asked.frame([], chunk=True), "usage": _totalled(usage)}


# -- log-probabilities -----------------------------------------------------------------------------


def logprobs(asked: PendingRequest, likely: Sequence[tuple[Token, Likely]]) -> dict[str, Any]:
    """Log-probabilities as OpenAI writes them, for a chat or a completion."""
    if asked.is_chat:
        return {"content": [_entry(asked, token, found) for token, found in likely]}
    texts = [_word(asked.piece(token.id)) for token, _ in likely]
    return {
        "tokens": texts,
        "token_logprobs": [found.value for _, found in likely],
        "top_logprobs": [
            {_word(asked.piece(i)): value for i, value in found.top} for _, found in likely
        ],
        "text_offset": [sum(map(len, texts[:i])) for i in range(len(texts))],
    }


def _entry(asked: PendingRequest, token: Token, found: Likely) -> dict[str, Any]:
    return {
        **_logprob(asked.piece(token.id), found.value),
        "top_logprobs": [_logprob(asked.piece(i), value) for i, value in found.top],
    }


def _logprob(data: bytes, value: float) -> dict[str, Any]:
    return {"token": _word(data), "logprob": value, "bytes": list(data)}


def _word(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# -- service-sent events -----------------------------------------------------------------------------------------------


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

READER_S = 120.0
"""How long a reader may leave the connection full before it is given up."""

_AHEAD = 8
# events made ready before the reader takes them; what else there is waits in the inboxes
_HEAD = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """An ASGI response: the chunks of all choices as they come, then `[DONE]`. `drop` hears of its end, however it came."""

    def __init__(self, asked: PendingRequest, drop: Callable[[PendingRequest], None]) -> None:
        self._asked, self._drop = asked, drop

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer; ends early, and quietly, where nobody listens."""
        left = asyncio.ensure_future(gone(receive))
        sent = asyncio.ensure_future(self._send_all(send))
        try:
            await asyncio.wait({left, sent}, return_when=asyncio.FIRST_COMPLETED)
            if sent.done():
                sent.result()
        except (asyncio.TimeoutError, OSError):
            pass  # a reader that does not read
        finally:
            left.cancel()
            sent.cancel()
            self._drop(self._asked)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEAD})
        async for data in self._events():
            message = {"type": "http.response.body", "body": data, "more_body": True}
            await asyncio.wait_for(send(message), READER_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        results: dict[int, Result] = {}
        try:
            async for index, chunk in self._merged():
                result = chunk.pop("_usage", None)
                if result is not None:
                    results[index] = result
                yield _event(chunk)
        except AnswerFailed as error:
            body = {"message": str(error), "type": "server_error", "code": error.kind}
            yield _event({"error": body})
            return
        if (self._asked.body.stream_options or {}).get("include_usage"):
            ordered = [results[i] for i in sorted(results)]
            yield _event(usage_chunk(self._asked, ordered))
        yield b"data: [DONE]\n\n"

    async def _merged(self) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """The chunks of all choices, each with its place."""
        n = len(self._asked.inboxes)
        if n == 1:
            async for chunk in streamed(self._asked, 0):
                yield 0, chunk
            return
        queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(_AHEAD)
        tasks = [asyncio.ensure_future(_feed(self._asked, i, queue)) for i in range(n)]
        try:
            while n:
                index, chunk = await queue.get()
                if isinstance(chunk, Exception):
                    raise chunk
                if chunk is None:
                    n -= 1
                else:
                    yield index, chunk
        finally:
            for task in tasks:
                task.cancel()


async def _feed(asked: PendingRequest, index: int, queue: asyncio.Queue[tuple[int, Any]]) -> None:
    try:
        async for chunk in streamed(asked, index):
            await queue.put((index, chunk))
    except AnswerFailed as error:
        await queue.put((index, error))
    await queue.put((index, None))


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
