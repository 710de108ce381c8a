"""A server's end: on SIGTERM, or Windows' SIGBREAK, it takes nothing more, and what it has begun may end."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from pyspec.serve.fleet import Fleet


AT_ONCE = 128
"""Connections that are accepted before others are read from: who asks must not give way to a flood that came behind it."""


DRAINS = {signal.SIGTERM, getattr(signal, "SIGBREAK", signal.SIGTERM)}
"""Nobody sends SIGTERM on Windows; CTRL_BREAK is what one program may send to another there."""


class DrainingServer(uvicorn.Server):
    """uvicorn's server. A signal of DRAINS lets answers go on for so many seconds; a second one, or SIGINT, ends it now.

    backlog: connections that may wait to be accepted.
    """

    def __init__(self, config: uvicorn.Config, fleet: Fleet, seconds: float, backlog: int) -> None:
        super().__init__(config)
        self._fleet, self._seconds, self._backlog = fleet, seconds, backlog
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(self._backlog)  # asyncio made the queue as short as what it accepts at once

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if sig not in DRAINS or self._loop is None or self._fleet.draining:
            super().handle_exit(sig, frame)
            return
        self._fleet.draining = True
        self._loop.call_soon_threadsafe(self._begin, sig, frame)

    def _begin(self, sig: int, frame: FrameType | None) -> None:
        self._drain = asyncio.ensure_future(self._fleet.drain(self._seconds))
        self._drain.add_done_callback(lambda _: uvicorn.Server.handle_exit(self, sig, frame))
