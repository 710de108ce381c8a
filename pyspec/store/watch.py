"""What other programs do with the processors, as the system's clocks tell it."""

from __future__ import annotations

import os
from contextlib import suppress
from time import perf_counter, process_time

import psutil

_SHORT_S = 0.1  # clocks that tick every 10 ms are too coarse for less
_SOME = 0.25  # processors that others may always take: a system is never idle
_TICK_S = 0.01


class Watch:
    """How much of the processors other programs take since it was made. processors: how many are watched.

    near: only those that this process may use, from one look to the next, and its children are others, too.
    """

    def __init__(self, *, near: bool = False) -> None:
        self._near = near
        mine = os.sched_getaffinity(0) if near and hasattr(os, "sched_getaffinity") else ()
        self._mine = frozenset(mine)  # empty for all
        self.processors = len(self._mine) or os.cpu_count() or 1
        self._before = self._read()

    def others(self) -> float:
        """Processor seconds a second that programs other than this one took."""
        now = self._read()
        passed, worked, own = (after - before for after, before in zip(now, self._before))
        if passed < _SHORT_S:
            return 0.0
        if self._near:
            self._before = now
        else:
            own += 2.0 * _TICK_S  # each count is rounded to a tick
        return max(0.0, worked - own) / passed

    def busy(self, threads: int) -> bool:
        """Whether others needed processors that so many threads of this process were on: a time taken since says little."""
        return self.others() > max(0, self.processors - threads) + _SOME

    def _read(self) -> tuple[float, float, float]:
        own = process_time() if self._near else _own_s()
        return perf_counter(), _all_s(self._mine), own


def is_quiet() -> bool:
    """Whether hardly anything ran in the last minute, as far as the system says."""
    return bool(psutil.getloadavg()[0] < 2.0 * _SOME)


def _all_s(only: frozenset[int]) -> float:
    """Seconds that all processors have worked, or these alone."""
    each = psutil.cpu_times(percpu=True)
    return sum(_worked_s(times) for i, times in enumerate(each) if i in only or not only)


def _worked_s(times: object) -> float:
    """Seconds that one has worked; not every system tells all kinds of work apart."""
    kinds = ("user", "nice", "system", "irq", "softirq")
    return sum(getattr(times, kind, 0.0) for kind in kinds)


def _own_s() -> float:
    """Seconds that this process and its living children have worked."""
    me, out = psutil.Process(), 0.0
    for process in (me, *me.children()):
        with suppress(psutil.Error):  # one that ended meanwhile
            times = process.cpu_times()
            out += times.user + times.system
    return out
