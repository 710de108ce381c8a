"""The time of one model's decode of n rows, learned while the program runs.

The curve has steps and is not monotone (kernels work in tiles of rows), so nothing here assumes a shape. A time is

    T(n) = scale * T0(1) * (1 + k(n) * (T0(n) / T0(1) - 1))

T0 is the curve that was assumed before. `scale` is how slow the machine is now. k(n) is how much more expensive than
assumed the rows beyond the first are. Neighbouring row counts have a similar k, so a few of them say much about the others.
`scale` is learned in all rounds, so the times of all row counts follow the machine, also those not in use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, log2, sqrt
from typing import NamedTuple

import numpy as np

from pyspec.errors import OptionError

N_MAX = 64

OWN_MAX = 16
"""Row counts up to here are learned one by one, others by quarters of an octave."""

SURE = 3  # observations after which a count tells the machine's speed
_REBUILD = 16  # observations between two rebuilds of a table whose counts are known
_DEAREST = 2.0  # most that rows together are believed to take, in units of as many single ones
_STALL = 2.5  # times the expected time: the machine did something else
_SLOW = 3  # stalls in a row after which the machine is taken to be slow
_DRIFT = 0.1  # relative change of the target's speed that is taken for the machine's
_DEPTH_STEP = 256  # positions of context that share a table
_KEPT_ERROR = 0.03  # of times that were kept, until this process has timed the same
_DEVIATION = 1.25  # standard deviations in a mean absolute one
_AT_ONCE = 10  # observations at most that one mean stands for, since the weight of older ones fades


@lru_cache(maxsize=4096)
def _key(rows: int) -> int:
    """The key under which k is learned for this many rows."""
    return rows if rows <= OWN_MAX else OWN_MAX + int(4.0 * log2(rows / OWN_MAX))


class _Timing(NamedTuple):
    """One timed decode.

    one: T0(1), in ms. more: what T0(rows) adds to it, in units of T0(1). k: the value believed before.
    """

    rows: int
    key: int
    ms: float
    one: float
    more: float
    k: float

    @property
    def expected(self) -> float:
        """The expected time, in ms, if the machine were as fast as assumed."""
        return self.one * (1.0 + self.k * self.more)

    def shape(self, ms: float) -> float:
        """The k that explains a time at the assumed speed. Rows may be decoded one by one, so they cost no more than that.

        Without a limit a stall may be believed as a k, and the next time without one as a machine that is as many times faster.
        """
        times = min(ms / self.one, _DEAREST * self.rows)
        return max(0.0, (times - 1.0) / self.more)


class KeptTime(NamedTuple):
    """A time for later processes."""

    ms: float
    seen: int  # how often it was observed; SURE at most


class RowTimes:
    """Time in ms of one model's decode of n rows; see the module's formula."""

    def __init__(self, bases: Mapping[int, Sequence[float]]) -> None:
        self._depths = sorted(bases)
        self._bases = [list(bases[d]) for d in self._depths]
        self.scale = 1.0
        self.pace = 1.0
        """The target's `scale` when this model was last timed."""
        self._k: dict[int, float] = {}
        self._count: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._off: dict[int, float] = {}
        """How far times were from what earlier ones of their count said: the mean, as a share."""
        self._doubted: set[int] = set()
        self._slow = self._waiting = 0
        self._depth = -1
        self._base_of = (-1, 0)
        self._one, self._more = 0.0, [0.0]
        self._table: list[float] = []

    def count(self, rows: int) -> int:
        """How often this many rows were observed, not counting stalls."""
        return self._count.get(_key(rows), 0)

    def table(self, depth: int = 0, rows: int = N_MAX) -> list[float]:
        """Times for 0.. at least `rows` rows at a context depth; do not change the list."""
        step = self._step(depth)
        if step != self._depth or len(self._table) <= rows:
            self._depth = step
            self._build(max(rows, N_MAX, len(self._table) - 1))
        return self._table

    def time(self, rows: int) -> float:
        """The time of any number of rows, also of a whole prompt read at once."""
        table = self.table()
        if rows < len(table):
            return table[rows]
        return self._ms(rows)

    def _ms(self, rows: int) -> float:
        """The module's formula, without context."""
        one, more = self._base(rows, 0)
        return self.scale * one * (1.0 + self._known(_key(rows)) * more)

    def follow(self, target: RowTimes) -> None:
        """Change speed as the target did since this model was last timed, since one machine runs both."""
        change = target.scale / self.pace
        if abs(change - 1.0) > _DRIFT:
            self.scale *= change
            self.pace, self._table = target.scale, []

    def observe(self, rows: int, ms: float, depth: int = 0) -> None:
        """Learn from a decode, or the mean of several. Impossible times are ignored; stalls, too, until they become the rule."""
        if not (rows >= 1 and 1e-4 < ms < 1e7):
            return
        one, more = self._base(rows, depth)
        key = _key(rows)
        seen = _Timing(rows, key, ms, one, more, self._known(key))
        if self._set_aside(seen):
            return
        self._slow = 0
        count = self._count[key] = self._count.get(key, 0) + 1
        if count > 1:
            off, weight = abs(ms / (self.scale * seen.expected) - 1.0), max(0.1, 1.0 / (count - 1))
            before = self._off.get(key, off)
            self._off[key] = before + weight * (off - before)
        if rows == 1 or count > SURE:
            self._learn_speed(seen, count)
        if rows > 1:
            self._learn_shape(seen, count)
        self._waiting += 1
        if self._table and (count <= SURE or self._waiting >= _REBUILD):
            self._build(len(self._table) - 1)

    def _set_aside(self, seen: _Timing) -> bool:
        """Whether this time may be a stall, from which nothing is learned.

        If a time that contradicts earlier ones is believed, the machine's speed has changed.
        """
        ratio = seen.ms / (self.scale * seen.expected)
        tried = seen.rows == 1 or seen.key in self._count
        if not self._count or (tried and ratio < 1.0 / _STALL):  # no machine is faster by chance
            self.scale *= ratio
            return False
        if ratio <= _STALL:
            return False
        if tried:
            self._slow += 1
            if self._slow <= _SLOW:
                return True
            self.scale *= ratio
            return False
        if seen.key in self._doubted:
            return False
        # either a stall, or the assumption is wrong: the next time will show
        self._doubted.add(seen.key)
        # reading costs time before it pays, so believe half of the surprise: the geometric mean
        if seen.rows > OWN_MAX:
            self._k[seen.key] = seen.shape(sqrt(ratio) * seen.expected)
        return True

    def _learn_speed(self, seen: _Timing, count: int) -> None:
        """Take part of the deviation of one row, or of a known row count, as a change of the machine's speed."""
        weight = max(0.1, 1.0 / count) if seen.rows == 1 else 0.05
        self.scale *= 1.0 + weight * (seen.ms / (self.scale * seen.expected) - 1.0)

    def _learn_shape(self, seen: _Timing, count: int) -> None:
        """Learn what the rows beyond the first take at this speed."""
        found = seen.shape(seen.ms / self.scale)
        # The first observation replaces the assumption. Any rest of that would later be taken for the machine's speed.
        self._k[seen.key] = seen.k + max(0.1, 1.0 / count) * (found - seen.k)

    def renew(self) -> None:
        """Treat what was learned as a guess, which the next observation of each count replaces."""
        self._count.clear()
        self._doubted.clear()
        self._off.clear()
        self._begun = {}

    def seen(self) -> dict[int, KeptTime]:
        """Times by rows, without context, of the counts up to OWN_MAX that were observed."""
        return {n: self._kept(n) for n in range(1, OWN_MAX + 1) if self.count(n)}

    def _kept(self, rows: int) -> KeptTime:
        return KeptTime(self._ms(rows), min(self.count(rows), SURE))

    def begin_with(self, times: Mapping[int, KeptTime]) -> None:
        """Learn from times that this machine took before."""
        for already in range(SURE):
            for rows in sorted(times):
                if already < times[rows].seen:
                    self.observe(rows, times[rows].ms)
        self._begun, self._table = dict(self._count), []
        self._off.clear()

    def error(self, rows: int) -> float:
        """The standard error of the time of this many rows, as a share of it; infinite where too little is known."""
        key = _key(rows)
        here = self.count(rows) - self._begun.get(key, 0)
        if here < SURE:
            return _KEPT_ERROR if self._begun.get(key, 0) >= SURE else inf
        return _DEVIATION * self._off[key] / sqrt(min(here - 1, _AT_ONCE))

    def _base(self, rows: int, depth: int) -> tuple[float, float]:
        """T0(1), and what T0(rows) adds to it in units of T0(1)."""
        if self._step(depth) == self._base_of[0] and rows <= len(self._more):
            return self._one, self._more[rows - 1]
        low, high, weight = self._around(depth)
        one = low[1] + (high[1] - low[1]) * weight
        t0, t1 = time_at(low, rows), time_at(high, rows)
        return one, max((t0 + (t1 - t0) * weight) / one - 1.0, 0.01 * (rows - 1))

    def _step(self, depth: int) -> int:
        """The number of the table for this depth."""
        return depth // _DEPTH_STEP if len(self._depths) > 1 else 0

    def _around(self, depth: int) -> tuple[list[float], list[float], float]:
        """Base curves on both sides of a depth, and how far it lies from the first to the second."""
        if len(self._depths) == 1 or depth <= self._depths[0]:
            return self._bases[0], self._bases[0], 0.0
        i = min(bisect_left(self._depths, depth), len(self._depths) - 1)
        d0, d1 = self._depths[i - 1], self._depths[i]
        return self._bases[i - 1], self._bases[i], (depth - d0) / (d1 - d0)

    def _known(self, key: int) -> float:
        """The k that is believed: the count's own, one interpolated between its neighbours', or that of the nearest."""
        if key in self._k:
            return self._k[key]
        if not self._k:
            return 1.0
        keys = sorted(self._k)
        i = bisect_left(keys, key)
        if i == 0 or i == len(keys):
            return self._k[keys[min(i, len(keys) - 1)]]
        low, high = keys[i - 1], keys[i]
        return self._k[low] + (self._k[high] - self._k[low]) * (key - low) / (high - low)

    def _build(self, rows: int) -> None:
        self._waiting = 0
        if self._base_of != (self._depth, rows):
            self._base_of = (-1, 0)
            base = [self._base(n, self._depth * _DEPTH_STEP) for n in range(1, rows + 1)]
            self._one, self._more = base[0][0], [0.0, *(more for _, more in base[1:])]
            self._base_of = self._depth, rows
        k = [self._known(key) for key in range(_key(rows) + 1)]
        one = self.scale * self._one
        times = (one + one * k[_key(n)] * more for n, more in enumerate(self._more, 1))
        self._table = [0.0, *times]


def expand(points: Mapping[int, float]) -> list[float]:
    """Times for 0..N_MAX rows from measured points {rows: time}; entry 0 is 0; rows beyond the last point follow `time_at`.

    Linear between neighbours. Raises OptionError on an empty curve or impossible times.
    """
    known = sorted((int(n), float(t)) for n, t in points.items())
    if not known or known[0][0] < 1 or not all(0.0 < t < 1e9 for _, t in known):
        raise OptionError("a cost curve needs positive, finite times for one or more rows")
    rows, times = zip(*known, strict=True)
    inside = [0.0, *np.interp(range(1, rows[-1] + 1), rows, times).tolist()]
    return [time_at(inside, n) for n in range(N_MAX + 1)]


def time_at(base: Sequence[float], rows: int) -> float:
    """A curve at any row count: beyond its end it has the slope of its upper half, so no single step is taken for a trend."""
    last = len(base) - 1
    if rows <= last:
        return base[rows]
    half = last // 2
    return base[last] + (rows - last) * max(0.0, base[last] - base[half]) / (last - half)
