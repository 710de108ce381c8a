"""What other programs do with the processors while something is measured; known to the tick on Linux alone."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

_SHORT_S = 0.1  # ticks are too coarse for less
_SOME = 0.25  # processors that others may always take: a system is never idle
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Watch:
    """How much of the processors other programs took since it was made."""

    def __init__(self) -> None:
        self._start, self._all, self._own = perf_counter(), _all_s(), _own_s()

    def others(self) -> float:
        """Processor seconds a second that programs other than this one and its children took since."""
        passed = perf_counter() - self._start
        if passed < _SHORT_S:
            return 0.0
        taken = (_all_s() - self._all) - (_own_s() - self._own)
        return max(0.0, taken - 2.0 / _TICKS) / passed  # each count is rounded to a tick

    def busy(self, threads: int) -> bool:
        """Whether others needed processors that so many threads of this process were on: a time taken since says little."""
        processors = os.cpu_count() or 1
        if not self._all:  # not Linux
            return _load() > processors + _SOME
        return self.others() > max(0, processors - threads) + _SOME


def _load() -> float:
    """Threads that wanted to run in the last minute, on average; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0


def is_quiet() -> bool:
    """Whether hardly anything ran in the last minute, as far as the system says."""
    return _load() < 2.0 * _SOME


def _all_s() -> float:
    """Seconds that all processors have worked."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, hard, soft = map(int, fields)
    return (user + nice + system + hard + soft) / _TICKS


def _own_s() -> float:
    """Seconds that this process and its living children have worked."""
    own, out = os.getpid(), 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if own in (int(path.parent.name), int(fields[1])):
            out += (int(fields[11]) + int(fields[12])) / _TICKS
    return out
