"""Whether a thread that has work gets on with it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pulse:
    """When a round of work ended last. seconds: how long one may take. clock: tells the time.

    One thread beats, any may ask.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = clock()

    def beat(self) -> None:
        """A round has ended, or the first one begins."""
        self._last = self._clock()

    @property
    def late(self) -> bool:
        """Whether the next one should have ended."""
        return self._clock() - self._last > self._seconds
