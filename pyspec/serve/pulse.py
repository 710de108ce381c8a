"""A watchdog for the engine's thread."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pulse:
    """The time of the last round. seconds: time limit of a round. clock: returns the time in seconds.

    One thread calls `beat`; any thread may read `late`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = clock()

    def beat(self) -> None:
        """Note the end of a round, or the start of the first one."""
        self._last = self._clock()

    @property
    def late(self) -> bool:
        """Whether the current round has exceeded its time limit."""
        return self._clock() - self._last > self._seconds
