"""What a round's decodes cost: the times of target, draft and companion by rows, learned while the program runs.

A curve has steps and is not monotone (kernels work in tiles of rows), so nothing here assumes a shape. A time is

    T(n) = scale * T0(n) * factor(n)

T0 is the curve that was assumed before: of a target, as a rule, its rows as this machine timed them. `scale` is how slow the
machine is now. factor(n) is how much dearer than assumed n rows are beside one, so factor(1) is 1. A count that was not observed
lies between its neighbours. `scale` is learned in all rounds, so the times of all counts follow the machine, used or not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, log2, sqrt
from typing import NamedTuple

import numpy as np

from pyspec.draft.types import Outcome
from pyspec.errors import OptionError

N_MAX = 64

OWN_MAX = 16
"""Row counts up to here are learned one by one, others by quarters of an octave."""

ROWS: Mapping[int, float] = {
    1: 10.0, 2: 14.4, 3: 16.8, 4: 19.6, 5: 26.3, 6: 28.5, 8: 30.4, 12: 40.0, 16: 49.4,
}  # fmt: skip
"""Ms of a target's decodes that are assumed where they could not be timed: a 135M model in Q4_K_M on two AVX-512 cores."""

CARD: Mapping[int, float] = {1: 1.0, 8: 1.74, 16: 4.1, 64: 5.0}
"""A draft's rows on a device, in units of one, as published of llama.cpp on CUDA (34B Q8_0); on a processor they are as ROWS."""

HEAD: Mapping[int, float] = {1: 1.0, 2: 2.2, 4: 3.6, 8: 4.9, 16: 8.0, 64: 24.0}
"""A draft that reads the target's states, in units of one of its own steps: from the drafts on the pages of the default target in
three types. The value for 64 rows is a prompt being read."""

SURE = 3  # observations after which a count tells the machine's speed
LONG_LAG = 4  # tokens per sequence to catch up with, above which reading takes longer than a step
_FAR_DEPTH = 4096  # context depth of a prior's second curve; linear between and beyond
_HEAD_MORE = 0.03  # share of a target row that a head's step takes beyond its share of bytes
_REBUILD = 16  # observations between two rebuilds of a table whose counts are known
_DEAREST = 2.0  # most that rows together are believed to take, in units of as many single ones
_STALL = 2.5  # times the expected time: the machine did something else
_SLOW = 3  # stalls in a row after which the machine is taken to be slow
_DEPTH_STEP = 256  # positions of context that share a table
_KEPT_ERROR = 0.03  # of times that were kept, until this process has timed the same
_DEVIATION = 1.25  # standard deviations in a mean absolute one
_AT_ONCE = 10  # observations at most that one mean stands for, since the weight of older ones fades


class KeptTime(NamedTuple):
    """A time for later processes."""

    ms: float
    seen: int  # how often it was observed; SURE at most


class RowTimes:
    """Time in ms of one model's decode of n rows; see the module's formula.

    bases: T0 by depth of the context; each has entries for 0..N_MAX rows.
    """

    def __init__(self, bases: Mapping[int, Sequence[float]]) -> None:
        self._depths = sorted(bases)
        self._bases = [bases[depth] for depth in self._depths]
        self.scale = 1.0
        self._factors = {1: 1.0}
        """What was learned, by `_key`; `_known` has the keys in order."""
        self._known = [1]
        self._count: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._off: dict[int, float] = {}
        """How far times were from what earlier ones of their count said: the mean, as a share."""
        self._surprises = Counter[int]()
        """Stalls in a row of known counts, under 0, and those of each unknown one."""
        self._waiting = 0
        self._step = -1
        self._table: list[float] = []

    def count(self, rows: int) -> int:
        """How often this many rows were observed, not counting stalls."""
        return self._count.get(_key(rows), 0)

    def table(self, depth: int = 0, rows: int = N_MAX) -> list[float]:
        """Times for 0.. at least `rows` rows at a context depth; do not change the list."""
        step = depth // _DEPTH_STEP if len(self._depths) > 1 else 0
        if step != self._step or len(self._table) <= rows:
            self._step = step
            self._build(max(rows, N_MAX, len(self._table) - 1))
        return self._table

    def time(self, rows: int) -> float:
        """The time of any number of rows, also of a whole prompt read at once."""
        table = self.table()
        return table[rows] if rows < len(table) else self._ms(rows)

    def observe(self, rows: int, ms: float, depth: int = 0) -> None:
        """Learn from a decode, or the mean of several. Impossible times are ignored; stalls, too, until they become the rule."""
        if not (rows >= 1 and 1e-4 < ms < 1e7):
            return
        key = _key(rows)
        expected = self._base(depth, rows) * self._factor(key)
        if self._set_aside(rows, ms / (self.scale * expected)):
            return
        count = self._count[key] = self._count.get(key, 0) + 1
        found = ms / (self.scale * expected)
        if count > 1:
            before = self._off.get(key, abs(found - 1.0))
            self._off[key] = before + max(0.1, 1.0 / (count - 1)) * (abs(found - 1.0) - before)
        # of a known count part of the deviation is the machine's speed
        if rows == 1 or count > SURE:
            self.scale *= 1.0 + (max(0.1, 1.0 / count) if rows == 1 else 0.05) * (found - 1.0)
        if rows > 1:
            self._learn_factor(rows, depth, ms / self.scale, max(0.1, 1.0 / count))
        self._waiting += 1
        if self._table and (count <= SURE or self._waiting >= _REBUILD):
            self._build(len(self._table) - 1)

    def _set_aside(self, rows: int, ratio: float) -> bool:
        """Whether a time, in units of the expected one, may be a stall, from which nothing is learned.

        If a time that contradicts earlier ones is believed, the machine's speed has changed; if none contradicts it, what was
        assumed is wrong.
        """
        known = rows == 1 or self.count(rows) > 0
        if not self._count or (known and ratio < 1.0 / _STALL):  # no machine is faster by chance
            self.scale *= ratio
            return False
        which = 0 if known else _key(rows)
        if ratio > _STALL:
            self._surprises[which] += 1
            if self._surprises[which] <= (_SLOW if known else 1):
                return True
            if known:
                self.scale *= ratio
        self._surprises[0] = 0
        return False

    def _learn_factor(self, rows: int, depth: int, ms: float, weight: float) -> None:
        """Learn from the time that n rows take at the assumed speed.

        The first time (of weight 1) replaces what was believed: any rest of that would later be taken for the machine's speed.
        Rows may be decoded one by one, so they cost no more than that. Without a limit a stall may be believed, and the next time
        without one as a machine that is as many times faster.
        """
        key, one = _key(rows), self._base(depth, 1)
        found = min(max(ms, one), _DEAREST * rows * one) / self._base(depth, rows)
        before = self._factor(key)
        if key not in self._factors:
            insort(self._known, key)
        self._factors[key] = before + weight * (found - before)

    def renew(self) -> None:
        """Treat what was learned as a guess, which the next observation of each count replaces."""
        for seen in (self._count, self._surprises, self._off, self._begun):
            seen.clear()

    def seen(self) -> dict[int, KeptTime]:
        """Times by rows, without context, of the counts up to OWN_MAX that were observed."""
        return {
            n: KeptTime(self._ms(n), min(self.count(n), SURE))
            for n in range(1, OWN_MAX + 1)
            if self.count(n)
        }

    def begin_with(self, times: Mapping[int, KeptTime]) -> None:
        """Learn from times that this machine took before."""
        for rows, kept in sorted(times.items()):
            for _ in range(kept.seen):
                self.observe(rows, kept.ms)
        self._begun, self._table = dict(self._count), []
        self._off.clear()

    def error(self, rows: int) -> float:
        """The standard error of the time of this many rows, as a share of it; infinite where too little is known."""
        key = _key(rows)
        here = self.count(rows) - self._begun.get(key, 0)
        if here < SURE:
            return _KEPT_ERROR if self._begun.get(key, 0) >= SURE else inf
        return _DEVIATION * self._off[key] / sqrt(min(here - 1, _AT_ONCE))

    def _ms(self, rows: int) -> float:
        """The module's formula, without context."""
        return self.scale * self._base(0, rows) * self._factor(_key(rows))

    def _factor(self, key: int) -> float:
        """The factor of a count, its own or one between its neighbours'."""
        if key in self._factors:
            return self._factors[key]
        i = bisect_left(self._known, key)
        low, high = self._known[max(0, i - 1)], self._known[min(i, len(self._known) - 1)]
        share = (key - low) / (high - low) if high > low else 0.0
        return self._factors[low] + share * (self._factors[high] - self._factors[low])

    def _base(self, depth: int, rows: int) -> float:
        """T0 of so many rows at this depth of the context."""
        return between(*self._around(depth), rows)

    def _around(self, depth: int) -> tuple[Sequence[float], Sequence[float], float]:
        """T0 on both sides of a depth, and how far it lies from the first to the second."""
        if len(self._depths) == 1 or depth <= self._depths[0]:
            return self._bases[0], self._bases[0], 0.0
        i = min(bisect_left(self._depths, depth), len(self._depths) - 1)
        d0, d1 = self._depths[i - 1], self._depths[i]
        return self._bases[i - 1], self._bases[i], (depth - d0) / (d1 - d0)

    def _build(self, rows: int) -> None:
        self._waiting = 0
        keys, around = _keys(rows), self._around(self._step * _DEPTH_STEP)
        factors = {key: self.scale * self._factor(key) for key in {*keys}}
        self._table = [factors[key] * between(*around, n) for n, key in enumerate(keys)]


def _key(rows: int) -> int:
    """The key under which this many rows are learned."""
    return rows if rows <= OWN_MAX else OWN_MAX + int(4.0 * log2(rows / OWN_MAX))


@lru_cache(maxsize=64)
def _keys(rows: int) -> list[int]:
    """The keys of 0..rows rows."""
    return [_key(n) for n in range(rows + 1)]


def expand(points: Mapping[int, float]) -> list[float]:
    """Times for 0..N_MAX rows from measured points {rows: time}; entry 0 is 0; rows beyond the last point follow `extended`.

    Linear between neighbours. Raises OptionError on an empty curve or impossible times.
    """
    known = sorted((int(n), float(t)) for n, t in points.items())
    if not known or known[0][0] < 1 or not all(0.0 < t < 1e9 for _, t in known):
        raise OptionError("a cost curve needs positive, finite times for one or more rows")
    rows, times = zip(*known, strict=True)
    inside = [0.0, *np.interp(range(1, rows[-1] + 1), rows, times).tolist()]
    return [extended(inside, n) for n in range(N_MAX + 1)]


def extended(base: Sequence[float], rows: int) -> float:
    """The time of so many rows. Beyond its end a curve has the slope of its upper half: no single step is taken for a trend."""
    last = len(base) - 1
    if rows <= last:
        return base[rows]
    half = last // 2
    return base[last] + (rows - last) * max(0.0, base[last] - base[half]) / (last - half)


def between(low: Sequence[float], high: Sequence[float], weight: float, rows: int) -> float:
    """The time of so many rows on a curve that lies so far from one to the other."""
    found = extended(low, rows)
    return found if low is high else found + weight * (extended(high, rows) - found)


class CostCurve:
    """The time of target, draft and companion by number of rows.

    `draft.table()[n]` is one step of n sequences in lock-step, or n tokens of one sequence read at once.
    """

    def __init__(self, target: RowTimes, draft: RowTimes, companion: RowTimes) -> None:
        self.target, self.draft, self.companion = target, draft, companion
        self._first_reading: Outcome | None = None

    @classmethod
    def prior(
        cls,
        rows: Mapping[int, float] = ROWS,
        draft_share: float = 0.15,
        companion_share: float = 0.1,
        *,
        deeper: Mapping[int, float] | None = None,
        head: bool = False,
        card: bool = False,
    ) -> CostCurve:
        """The curve assumed before any round, with side models as shares of a target row.

        `rows`: ms of the target's decodes, by rows. `deeper` has the milliseconds that each position of context adds to one, by
        rows. `head`: the draft reads the target's states; its rows use few weights and many kernels. card: side models run on a
        device.
        """
        own = expand(rows)
        bases = {0: own}
        if deeper:
            more = expand(deeper)
            bases[_FAR_DEPTH] = [t + _FAR_DEPTH * m for t, m in zip(own, more)]
        # not in the target's proportions: a small model's rows are not as flat as those of a large one may be
        small = expand(CARD if card else ROWS)
        one = own[1] / small[1]
        draft = [one * draft_share * t for t in small]
        if head:
            draft = [own[1] * (draft_share + _HEAD_MORE) * t for t in expand(HEAD)]
        sides = (draft, [one * companion_share * t for t in small])
        return cls(RowTimes(bases), *(RowTimes({0: times}) for times in sides))

    def begin_with(self, target: Mapping[int, KeptTime], draft: Mapping[int, KeptTime]) -> None:
        """Start from times by rows that this machine took before, where there are any."""
        self.target.begin_with(target)
        self.draft.begin_with(draft)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round's times, or from the mean times of several."""
        n_seq = len(outcome.seqs)
        if outcome.verify_rows == outcome.own_rows:  # prompt rows have no logits and cost less
            self.target.observe(outcome.verify_rows, outcome.t_verify, outcome.depth)
        if outcome.draft_steps > 0:
            self._observe_draft(outcome, n_seq)
        if outcome.companion_rows > 0:
            self.companion.observe(outcome.companion_rows, outcome.t_companion)

    def renew(self) -> None:
        """Treat all learned times as guesses."""
        for side in (self.target, self.draft, self.companion):
            side.renew()

    def _observe_draft(self, outcome: Outcome, n_seq: int) -> None:
        """Learn from the larger part: the first decode where the draft read many tokens to catch up, else the other steps.

        Both parts are taken to have been slower or faster than believed by one factor: what is left of a short time after the
        other part's belief is taken away may be next to nothing, and a draft that seemed free would be used everywhere.

        If the draft reads many tokens before the time of a step is known, that round is kept and learned from later.
        """
        steps, first = outcome.draft_steps, n_seq + max(0, outcome.caught_up)
        if outcome.caught_up > LONG_LAG * n_seq and not self.draft.count(n_seq):
            self._first_reading = outcome
            return
        reading, step = self.draft.time(first), self.draft.time(n_seq)
        factor = outcome.t_draft / (reading + (steps - 1) * step)
        if reading >= (steps - 1) * step:
            self.draft.observe(first, factor * reading)
        else:
            self.draft.observe(n_seq, factor * step)
        read = self._first_reading
        if read and len(read.seqs) == n_seq and self.draft.count(n_seq):
            self._first_reading = None
            self._observe_draft(read, n_seq)
