"""How long a reader is waited for, and how long it has to wait without a word."""

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
# a request whose body takes longer to come is given up

READER_S = 120.0
"""How long a reader may leave the connection full before it is given up."""


class PatientSend:
    """Sends messages, each within so many seconds. There is one timer for all: a stream has a message for each token.

    silent: called where nothing was sent for `every` seconds. To be made in the running loop, and ended. Called, it raises
    asyncio.TimeoutError where the reader takes too long.
    """

    def __init__(
        self, send: Send, seconds: float, silent: Callable[[], None], every: float
    ) -> None:
        self._send, self._seconds, self._silent, self._every = send, seconds, silent, every
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None  # that waits for the reader
        self._since, self._late = self._loop.time(), False
        self._timer = self._loop.call_later(min(every, seconds), self._look)

    async def __call__(self, message: Message) -> None:
        """Send one."""
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
        # no later than either may be due: a message may be taken, or come, before
        self._timer = self._loop.call_later(min(left, self._every, self._seconds), self._look)

    def end(self) -> None:
        """Nothing more is sent."""
        self._timer.cancel()


Admission = tuple["PendingRequest", "Callable[[], None]"]
"""A request whose answers have begun, and what ends them."""


class EventStream(StreamingResponse):
    """The answers of a request as a stream; it need not have been understood yet.

    interface: writes them. refusal: what ends the stream where the request is refused after all. Where nothing was sent for
    `every` seconds, the reader is shown that it goes on. The answers are ended with the stream, however that came.
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
        """Answer; ends early, and quietly, where nobody listens or nobody reads."""
        patient = PatientSend(send, READER_S, self._ping, self._every)
        try:
            await super().__call__(scope, receive, patient)
        except (asyncio.TimeoutError, OSError, ClientDisconnect):
            pass
        finally:
            patient.end()
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
    """The whole body of a request, of at most so many bytes. Raises HTTPException for one that is too long or too slow."""

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
