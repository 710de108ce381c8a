"""Whose turn it is on an object that several threads use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from pyspec.errors import EngineBusy, OptionError


class Turns:
    """One answer after another.

    wait: seconds that an answer waits for the one in flight, True for any time; False has no queue at all, and leaves it to
    the engine to refuse two answers at once.
    """

    def __init__(self, wait: bool | float) -> None:
        if wait is not True and not 0.0 <= wait < float("inf"):
            raise OptionError(f"wait is {wait}", "use True, False or a number of seconds")
        self._wait = wait
        self._lock = Lock()  # a stream may be closed by another thread than the one that began it

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the turn. Raises EngineBusy if it does not come in time."""
        if self._wait is False:
            yield
            return
        if not self._lock.acquire(timeout=-1 if self._wait is True else self._wait):
            raise EngineBusy(
                f"the answer in flight did not end within {self._wait} s",
                "close streams that nobody reads, or raise wait",
            )
        try:
            yield
        finally:
            self._lock.release()
