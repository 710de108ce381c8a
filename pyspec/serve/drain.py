"""Shutdown: on SIGTERM the server refuses new requests and finishes those that run."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn

from pyspec.serve.access import Activity
from pyspec.serve.fleet import Fleet

log = logging.getLogger("pyspec")

AT_ONCE = 128
"""Connections to accept before reading from others: a flood must not evict a client that came before it."""


class DrainingServer(uvicorn.Server):
    """uvicorn's server. SIGTERM gives running answers `seconds` to end; a second one, or SIGINT, cancels them.

    Another SIGINT does not wait for readers either. uvicorn raises the signals again as soon as it has ended; here
    `repeat_signal` does so once everything is written.

    backlog: connections that may wait to be accepted. idle: seconds without a request after which the server ends, 0 for never.
    activity: measures the idle time.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        fleet: Fleet,
        seconds: float,
        backlog: int,
        idle: float = 0.0,
        activity: Activity | None = None,
    ) -> None:
        super().__init__(config)
        self._idle, self._activity = idle, activity
        self._fleet, self._seconds, self._backlog = fleet, seconds, backlog
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drains: list[asyncio.Task[None]] = []
        self._cuts = False
        self._last: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(self._backlog)  # asyncio made the queue as short as what it accepts at once
        self._look()

    def _look(self) -> None:
        """End the server once it has been idle for long enough, or look again later."""
        if not self._idle or self._activity is None or self._loop is None:
            return
        left = self._idle - self._activity.idle_s
        if left > 0:
            self._loop.call_later(max(left, 0.05), self._look)
            return
        log.warning("the server ends: nothing was asked for %.0f s", self._idle)
        self._fleet.draining = True
        self._begin(0.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections and the engines: with `force_exit`, uvicorn does not run the application's own shutdown."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self._fleet.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._last = sig
        if self._loop is None:
            self.should_exit = True
            return
        self.force_exit = self.force_exit or (self._cuts and sig == signal.SIGINT)
        self._cuts = sig != signal.SIGTERM or self._fleet.draining
        self._fleet.draining = True
        self._loop.call_soon_threadsafe(self._begin, 0.0 if self._cuts else self._seconds)

    def _begin(self, seconds: float) -> None:
        drain = asyncio.ensure_future(self._fleet.drain(seconds))
        self._drains.append(drain)
        drain.add_done_callback(self._drained)

    def _drained(self, _drain: asyncio.Task[None]) -> None:
        self.should_exit = True

    def repeat_signal(self) -> None:
        """End the process by the last signal received, if any."""
        if self._last is not None:
            signal.raise_signal(self._last)


def leave_hung(fleet: Fleet) -> None:
    """End the process with status 1 if an engine hangs: freeing its model would crash. The default model is freed if possible."""
    hung = fleet.hung
    if not hung:
        return
    if fleet.default not in hung:
        fleet.default.batch.close()
    sys.stdout.flush()
    logging.shutdown()
    os._exit(1)
