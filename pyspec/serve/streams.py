"""Streamed responses: signs of life while nothing is made, and an end for clients that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from pyspec.serve.apis.interface import Interface
from pyspec.serve.pending import PendingRequest

READER_S = 120.0
"""Time limit for a client to make room in a full connection."""

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
        self._expect()
        written = self._written(refusal)
        super().__init__(written, headers=headers, media_type=interface.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answers; end without an error if the client leaves or does not read."""

        async def timed(message: Message) -> None:
            self._silent.cancel()
            with anyio.fail_after(READER_S):
                await send(message)
            self._expect()

        try:
            await super().__call__(scope, receive, timed)
        except (OSError, ClientDisconnect):  # OSError: TimeoutError, too
            pass
        finally:
            self._silent.cancel()
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

    def _expect(self) -> None:
        self._silent = asyncio.get_running_loop().call_later(self._every, self._ping)

    def _ping(self) -> None:
        if self._begun.done() and self._begun.exception() is None:
            self._begun.result()[0].ping()
        self._expect()


def _end(begun: asyncio.Future[Admission]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result()[1]()
