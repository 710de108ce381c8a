"""uvicorn's server as it is used here: it ends in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from types import FrameType

import uvicorn

from pyspec.serve.fleet import Fleet

log = logging.getLogger("pyspec")


class DrainingServer(uvicorn.Server):
    """uvicorn's server. SIGTERM gives running answers `seconds` to end; a second one, or SIGINT, cancels them.

    uvicorn raises the signals again as soon as it has ended; here `repeat_signal` does so once everything is written.
    """

    def __init__(self, config: uvicorn.Config, fleet: Fleet, seconds: float) -> None:
        super().__init__(config)
        self._fleet, self._seconds = fleet, seconds
        self._cuts = False
        self._last: int | None = None

    async def main_loop(self) -> None:
        """Serve until a signal comes; then refuse requests, and look for another signal, until those that run have ended."""
        await super().main_loop()
        drain = asyncio.ensure_future(self._fleet.drain(0.0 if self._cuts else self._seconds))
        while not drain.done() and not self._cuts:
            await asyncio.wait({drain}, timeout=0.05)
        await asyncio.gather(drain, self._fleet.drain(0.0))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._cuts = sig != signal.SIGTERM or self.should_exit
        self._last, self.should_exit = sig, True

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
