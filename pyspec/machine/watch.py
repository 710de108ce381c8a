"""Measures how much CPU time other programs use."""

from __future__ import annotations

import os
from contextlib import suppress
from time import perf_counter, process_time

import psutil

_SHORT_S = 0.1  # clocks that tick every 10 ms are too coarse for less
_SOME = 0.25  # processors that others may always use: a system is never quite idle
_TICK_S = 0.01


class Watch:
    """Measures the CPU time of other programs since its creation. processors: how many are watched.

    near: watch only the processors this process may use, measure since the last call, and count its children as others.
    """

    def __init__(self, *, near: bool = False) -> None:
        self._near = near
        mine = os.sched_getaffinity(0) if near and hasattr(os, "sched_getaffinity") else ()
        self._mine = frozenset(mine)  # empty for all
        self.processors = len(self._mine) or os.cpu_count() or 1
        self._before = self._read()

    def others(self) -> float:
        """Return the CPU seconds per second that other programs used."""
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
        """Whether others needed processors of this process's `threads` threads, so that a time measured meanwhile says little."""
        return self.others() > max(0, self.processors - threads) + _SOME

    def _read(self) -> tuple[float, float, float]:
        own = process_time() if self._near else _own_s()
        return perf_counter(), _all_s(self._mine), own


def is_quiet() -> bool:
    """Whether hardly anything ran in the last minute, by the system's load average."""
    return bool(psutil.getloadavg()[0] < 2.0 * _SOME)


def _all_s(only: frozenset[int]) -> float:
    """Return the seconds that all processors have worked, or only these."""
    each = psutil.cpu_times(percpu=True)
    return sum(_worked_s(times) for i, times in enumerate(each) if i in only or not only)


def _worked_s(times: object) -> float:
    """Return the seconds that a processor has worked; not every system distinguishes all kinds of work."""
    kinds = ("user", "nice", "system", "irq", "softirq")
    return sum(getattr(times, kind, 0.0) for kind in kinds)


def _own_s() -> float:
    """Return the seconds that this process and its living children have worked."""
    me, out = psutil.Process(), 0.0
    for process in (me, *me.children()):
        with suppress(psutil.Error):  # it may have ended meanwhile
            times = process.cpu_times()
            out += times.user + times.system
    return out
