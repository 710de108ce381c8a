"""Service-sent events: answers as they come, to readers that may be slow or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.serve.answers import AnswerFailed, PendingRequest, streamed, usage_chunk

if TYPE_CHECKING:
    from pyspec.batch.records import Result

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
            told = {"message": str(error), "type": "server_error", "code": error.failure.type}
            yield _event({"error": told})
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
