"""What callers may ask for, checked before it reaches llama.cpp: ranges, and one answer at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

from pyspec.errors import EngineBusy, OptionError


class Range(NamedTuple):
    """From `low` to `high`, both included; `whole` for integers, `usual` says what is sensible."""

    low: float
    high: float
    whole: bool
    usual: str


RANGES = {
    "n_ctx": Range(0, 1 << 24, True, "0 (the model's own) to 16777216 tokens"),
    "n_batch": Range(1, 1 << 20, True, "1 to 1048576"),
    "n_ubatch": Range(1, 1 << 20, True, "1 to 1048576"),
    "n_threads": Range(0, 512, True, "1 to 512"),
    "n_threads_batch": Range(0, 512, True, "1 to 512"),
    "n_gpu_layers": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for all"),
    "draft_n_gpu_layers": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for all"),
    "draft_max": Range(0, (1 << 31) - 1, True, "0 or more"),
    "max_tokens": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for as many as fit"),
    "temperature": Range(-1e9, 1e9, False, "0 for greedy, or up to about 2"),
    "top_k": Range(-(1 << 31), (1 << 31) - 1, True, "1 or more, or 0 for all"),
    "top_p": Range(0.0, 1.0, False, "more than 0, up to 1"),
    "min_p": Range(0.0, 1.0, False, "0 to 1"),
    "typical_p": Range(0.0, 1.0, False, "more than 0, up to 1"),
    "repeat_penalty": Range(1e-3, 1e3, False, "1 for none, or about 1.1"),
    "frequency_penalty": Range(-1e3, 1e3, False, "-2 to 2"),
    "presence_penalty": Range(-1e3, 1e3, False, "-2 to 2"),
    "mirostat_tau": Range(0.0, 1e3, False, "0 or more, 5 as a rule"),
    "mirostat_eta": Range(0.0, 1e3, False, "0 or more, 0.1 as a rule"),
}
"""What llama.cpp can take; a value outside makes it wrap, assert, or answer nonsense."""


def check_ranges(options: Mapping[str, Any]) -> None:
    """Raise OptionError for a number outside the range of its name; None is left alone, and what has no range."""
    for name, value in options.items():
        if name not in RANGES or value is None:
            continue
        allowed = RANGES[name]
        good = isinstance(value, int if allowed.whole else (int, float)) and math.isfinite(value)
        if not good or not allowed.low <= value <= allowed.high:
            raise OptionError(f"{name} is {value!r}", f"use {allowed.usual}")


# -- turns -------------------------------------------------------------------------------------------------------------


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
