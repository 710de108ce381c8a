"""Time limits of a connection: for the client to send its body, for it to read the answer, and between two signs of life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from pyspec.serve.apis.interface import Interface
from pyspec.serve.pending import PendingRequest

_BODY_S = 30.0
# time limit for receiving a request's body

READER_S = 120.0
"""Time limit for a client to make room in a full connection."""


class TimedSend:
    """Sends messages with a time limit for each. All share one timer, since a stream has a message for each token.

    silent: is called after `every` seconds without a message. A call raises asyncio.TimeoutError where the client takes longer
    than `seconds`. Create it in the running loop, and call `end`.
    """

    def __init__(
        self, send: Send, seconds: float, silent: Callable[[], None], every: float
    ) -> None:
        self._send, self._seconds, self._silent, self._every = send, seconds, silent, every
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None  # the one that waits for the client
        self._since, self._late = self._loop.time(), False
        self._timer = self._loop.call_later(min(every, seconds), self._look)

    async def __call__(self, message: Message) -> None:
        self._task, self._since = asyncio.current_task(), self._loop.time()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if self._late:
                raise asyncio.TimeoutError from None
            raise
        finally:
            self._task = None

    def _look(self) -> None:
        waits = self._task is not None
        left = (self._seconds if waits else self._every) + self._since - self._loop.time()
        if left <= 0 and self._task is not None:
            self._late = True
            self._task.cancel()
            return
        if left <= 0:
            self._since, left = self._loop.time(), self._every
            self._silent()
        # no later than the earlier of both limits: until then a message may be taken, or another sent
        self._timer = self._loop.call_later(min(left, self._every, self._seconds), self._look)

    def end(self) -> None:
        self._timer.cancel()


Admission = tuple["PendingRequest", "Callable[[], None]"]
"""A running request, and the function that ends it."""


class EventStream(StreamingResponse):
    """A streamed response, which may begin before the request is admitted.

    interface: writes the events. refusal: the last event if the request is refused after all. every: seconds of silence before
    a ping. The request ends with the stream, for whatever reason that ends.
    """

    def __init__(
        self,
        begun: asyncio.Future[Admission],
        interface: Interface,
        refusal: Callable[[BaseException], bytes],
        every: float,
    ) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        self._begun, self._every, self._of = begun, every, interface
        written = self._written(refusal)
        super().__init__(written, headers=headers, media_type=interface.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answers; end without an error if the client leaves or does not read."""
        timed = TimedSend(send, READER_S, self._ping, self._every)
        try:
            await super().__call__(scope, receive, timed)
        except (asyncio.TimeoutError, OSError, ClientDisconnect):
            pass
        finally:
            timed.end()
            self._begun.add_done_callback(_end)

    async def _written(self, refusal: Callable[[BaseException], bytes]) -> AsyncIterator[bytes]:
        while not self._begun.done():
            if self._of.ping:
                yield self._of.ping
            await asyncio.wait({self._begun}, timeout=self._every)
        if error := self._begun.exception():
            yield refusal(error)
            return
        async for each in self._of.events(self._begun.result()[0]):
            yield each

    def _ping(self) -> None:
        if self._begun.done() and self._begun.exception() is None:
            self._begun.result()[0].ping()


def _end(begun: asyncio.Future[Admission]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result()[1]()


async def whole_body(request: Request, most: int) -> bytes:
    """A request's body of at most `most` bytes. Raises HTTPException if it is too long or too slow."""

    async def read() -> bytes:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                raise HTTPException(413, f"the body is longer than {most} bytes")
        return bytes(data)

    try:
        return await asyncio.wait_for(read(), _BODY_S)
    except ClientDisconnect:
        raise HTTPException(499, "the client has gone") from None
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the body did not come in {_BODY_S:.0f} s") from None
