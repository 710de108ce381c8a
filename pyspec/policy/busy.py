"""Detects that other programs use the machine: decodes then take many times longer than before."""

from __future__ import annotations

from math import inf

TIMES = 4.0
LONG = 20
"""Slow rounds in a row before it is said: a stall is over sooner."""

SENTENCE = (
    "decoding takes more than %d times as long as before: other programs use the processors; "
    "fewer threads may be faster (-t N, n_threads=N)"
)
_FEW = 3  # observations of a row count before its own best time is trusted


class Busy:
    """Counts slow rounds. Each row count is compared only with its own best time, since assumptions about others may be wrong.

    measured: whether times are in units of a measured curve, which this machine has reached already.
    """

    def __init__(self, measured: bool) -> None:
        self._start = 1.0 if measured else inf
        self._best: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._slow = 0
        self._noted = False

    def notes(self, rows: int, times: float, rounds: int = 1) -> bool:
        """Whether to warn now, which happens once.

        times: mean time of these rounds in units of the curve's, 0 if unknown.
        """
        if not times or self._noted:
            return False
        best = self._best[rows] = min(self._best.get(rows, self._start), times)
        seen = self._seen[rows] = self._seen.get(rows, 0) + 1
        if seen <= _FEW and self._start == inf:
            return False
        self._slow = self._slow + rounds if times > TIMES * best else 0
        self._noted = self._slow >= LONG
        return self._noted
