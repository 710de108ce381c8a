"""What a batch of n rows costs, learned while the program runs or loaded from a profile.

The curve is stepped and not monotone (kernels work in tiles of rows), so nothing here assumes a
shape: measured row counts keep their own value and the others are interpolated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from pyspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

N_MAX = 64
_WINDOW = 15  # observations a running median looks back on
_SURE = 3  # observations from which on a median says something
_REBUILD = 16  # observations between two rebuilds of a table
_DEPTH_STEP = 256  # context depths closer than this share a table
_FAR_DEPTH = 4096  # where a prior with depth has its second curve; linear between and beyond
_VERSION_CHANGE = 0.01  # relative change of an entry that makes a table a new version

SHAPES: Mapping[str, Mapping[int, float]] = {
    # Times the cost of one row. CPU: measured on two AVX-512 cores with a 135M model, flash
    # attention on, 64 positions of context (Q4_0 and Q8_0: off, and another machine). The GPU rows
    # come from published measurements of llama.cpp (34B Q8_0 on CUDA, op level on Metal).
    "Q4_1": {1: 1, 2: 1.78, 3: 2.17, 4: 2.65, 5: 3.30, 6: 3.77, 8: 4.25, 12: 6.17, 16: 7.75},
    "Q4_0": {1: 1, 2: 1.53, 3: 1.95, 4: 2.24, 5: 2.92, 6: 3.35, 8: 3.60, 12: 4.99, 16: 5.11},
    "Q8_0": {1: 1, 2: 2.02, 3: 2.46, 4: 2.68, 5: 3.28, 6: 3.60, 8: 3.88, 12: 5.41, 16: 6.53},
    "Q4_K_M": {1: 1, 2: 1.44, 3: 1.68, 4: 1.96, 5: 2.63, 6: 2.85, 8: 3.04, 12: 4.00, 16: 4.94},
    "BF16": {1: 1, 2: 1.68, 3: 1.89, 4: 2.12, 5: 2.21, 6: 2.32, 8: 2.61, 12: 3.12, 16: 3.67},
    "cuda": {1: 1, 8: 1.74, 9: 3.89, 16: 4.1, 64: 5.0},
    "metal": {1: 1, 2: 2.06, 8: 7.6, 16: 8.2, 64: 12.0},
}
DEFAULT_SHAPE = "Q4_1"


def expand(points: Mapping[int, float], n_max: int = N_MAX) -> list[float]:
    """Times for 0..n_max rows from measured points {rows: time}; entry 0 is 0.

    Linear between neighbours; beyond the last point it goes on with the mean slope of the upper
    half of the curve, so that one step at the end is not taken for the trend.
    Raises OptionError on an empty, non-positive or non-finite curve.
    """
    known = sorted((int(n), float(t)) for n, t in points.items())
    if not known or known[0][0] < 1 or not all(0.0 < t < 1e9 for _, t in known):
        raise OptionError("a cost curve needs positive, finite times for one or more rows")
    last_n, last_t = known[-1]
    half = next(((n, t) for n, t in known if 2 * n >= last_n and n < last_n), None)
    slope = max(0.0, (last_t - half[1]) / (last_n - half[0])) if half else last_t / last_n
    if known[0][0] > 1:
        known.insert(0, (1, known[0][1]))
    out = [0.0] * (n_max + 1)
    for (n0, t0), (n1, t1) in zip(
        known, [*known[1:], (n_max + last_n, last_t + slope * n_max)], strict=False
    ):
        for n in range(n0, min(n1, n_max + 1)):
            out[n] = t0 + (t1 - t0) * (n - n0) / (n1 - n0)
    return out


def shape(name: str) -> Mapping[int, float]:
    """The prior shape for a GGUF file type or backend; unknown names get the dearest CPU one."""
    return SHAPES.get(name, SHAPES[DEFAULT_SHAPE])


class RowTimesState(msgspec.Struct):
    """Saved form of a RowTimes: base curves in ms by context depth, and whether measured."""

    depths: list[int]
    bases: list[list[float]]
    measured: bool


class RowTimes:
    """Time in ms of one model's decode of n rows: a base curve, a learned ratio per n, and a level.

    The level is how fast the machine is just now, whatever n. Without it a count seen in every round would follow each
    slow second, a rare one would not, and the rare one would look cheap whenever the machine is slow.
    """

    def __init__(self, bases: Mapping[int, Sequence[float]], measured: bool = False) -> None:
        self._depths = sorted(bases)
        self._bases = [list(bases[d]) for d in self._depths]
        self.n_max = len(self._bases[0]) - 1
        self.measured = measured
        self.version = 0
        self._seen: dict[int, deque[float]] = {}
        self._ratio: dict[int, float] = {}
        self._recent: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self._waiting: list[tuple[int, float]] = []
        self._count: dict[int, int] = {}
        self._level = 1.0
        self._depth = -1
        self._table: list[float] = []

    def base(self, depth: int) -> Sequence[float]:
        """The curve before learning at a context depth, linear between measured depths."""
        low, high, weight = self._around(depth)
        if low is high:
            return low
        return [a + (b - a) * weight for a, b in zip(low, high, strict=False)]

    def _around(self, depth: int) -> tuple[list[float], list[float], float]:
        """Base curves around a depth, and how far it is from the first to the second; one curve twice at the shallow end."""
        if len(self._depths) == 1 or depth <= self._depths[0]:
            return self._bases[0], self._bases[0], 0.0
        k = min(bisect_left(self._depths, depth), len(self._depths) - 1)
        d0, d1 = self._depths[k - 1], self._depths[k]
        return self._bases[k - 1], self._bases[k], (depth - d0) / (d1 - d0)

    def observe(self, rows: int, ms: float, depth: int = 0) -> None:
        """Learn from one decode; rows outside the curve and impossible times are ignored."""
        if not (1 <= rows <= self.n_max and 1e-4 < ms < 1e7):
            return
        low, high, weight = self._around(depth)
        seen = rows, ms / (low[rows] + (high[rows] - low[rows]) * weight)
        self._waiting.append(seen)
        self._recent.append(seen)
        count = self._count[rows] = self._count.get(rows, 0) + 1
        if count in (1, _SURE) or len(self._waiting) >= _REBUILD:
            self._learn()

    def table(self, depth: int = 0) -> list[float]:
        """Times for 0..n_max rows at a context depth; do not change the list."""
        if len(self._depths) == 1:
            depth = 0
        if depth // _DEPTH_STEP != self._depth or not self._table:
            self._depth = depth // _DEPTH_STEP
            self._build()
        return self._table

    def scaled(self, factor: float) -> None:
        """Multiply the base curve, as when the unit of an unmeasured prior becomes known."""
        self._bases = [[t * factor for t in base] for base in self._bases]
        self._table = []
        self.version += 1

    def count(self, rows: int) -> int:
        """How many times `rows` was observed."""
        return self._count.get(rows, 0)

    def state(self) -> RowTimesState:
        """The learned curve as a base for the next process."""
        factor = self._factors()
        bases = [[t * f for t, f in zip(base, factor, strict=False)] for base in self._bases]
        return RowTimesState(list(self._depths), bases, self.measured or bool(self._seen))

    @classmethod
    def restore(cls, state: RowTimesState) -> RowTimes:
        """The inverse of `state`."""
        return cls(dict(zip(state.depths, state.bases, strict=False)), state.measured)

    def _learn(self) -> None:
        """Running medians of ms/base; one lone observation counts half, first calls being slow."""
        self._find_level()
        for n, x in self._waiting:
            self._seen.setdefault(n, deque(maxlen=_WINDOW)).append(x / self._level)
        self._waiting.clear()
        median = {n: sorted(seen)[len(seen) // 2] for n, seen in self._seen.items()}
        anchor = median[max(self._seen, key=lambda n: len(self._seen[n]))]
        if self.measured:
            anchor = 1.0
        self._ratio = {
            n: (m if len(self._seen[n]) > 1 else (m * anchor) ** 0.5) for n, m in median.items()
        }
        self._build()

    def _find_level(self) -> None:
        """The median of what the counts with a ratio of their own showed lately."""
        sure = {n: r for n, r in self._ratio.items() if self._count[n] >= _SURE}
        shown = sorted(x / sure[n] for n, x in self._recent if n in sure)
        if len(shown) >= _SURE:
            self._level = shown[len(shown) // 2]

    def _factors(self) -> list[float]:
        known = sorted((n, r * self._level) for n, r in self._ratio.items())
        if not known:
            return [1.0] * (self.n_max + 1)
        out = [known[0][1]] * (self.n_max + 1)
        for (n0, r0), (n1, r1) in zip(
            known, [*known[1:], (self.n_max + 1, known[-1][1])], strict=False
        ):
            for n in range(n0, n1):
                out[n] = r0 + (r1 - r0) * (n - n0) / (n1 - n0)
        return out

    def _build(self) -> None:
        base = self.base(max(self._depth, 0) * _DEPTH_STEP)
        new = [t * f for t, f in zip(base, self._factors(), strict=False)]
        old = self._table
        if not old or any(abs(a - b) > _VERSION_CHANGE * b for a, b in zip(new, old, strict=False)):
            self._table = new
            self.version += 1


class CurveState(msgspec.Struct):
    """Saved form of a CostCurve."""

    target: RowTimesState
    draft: RowTimesState
    companion: RowTimesState


class CostCurve:
    """The target's, the draft's and the companion's time by rows.

    Without a profile the target starts from a prior shape in units of `one_row_ms`; the draft
    and the companion from the shares of a target row that their file sizes suggest.
    `draft.table()[n]` is one step of n sequences in lock-step. `depth_share` is what each position
    of context adds to every row of the target, in units of one row without context.
    """

    def __init__(
        self,
        shape_name: str = DEFAULT_SHAPE,
        one_row_ms: float = 10.0,
        draft_share: float = 0.15,
        companion_share: float = 0.1,
        *,
        n_max: int = N_MAX,
        depth_share: float = 0.0,
    ) -> None:
        def times(unit: float, points: Mapping[int, float]) -> RowTimes:
            return RowTimes({0: [unit * t for t in expand(points, n_max)]})

        prior = shape(shape_name)
        self.target = times(one_row_ms, prior)
        if depth_share > 0.0:
            shallow = self.target.base(0)
            more = one_row_ms * depth_share * _FAR_DEPTH
            deep = [t + n * more for n, t in enumerate(shallow)]
            self.target = RowTimes({0: shallow, _FAR_DEPTH: deep})
        self.draft = times(one_row_ms * draft_share, prior)
        self.companion = times(one_row_ms * companion_share, prior)
        self._shares = (draft_share, companion_share)

    @classmethod
    def from_tables(
        cls,
        target: Mapping[int, Sequence[float]],
        draft: Sequence[float],
        companion: Sequence[float],
    ) -> CostCurve:
        """A measured curve: target times by depth, then draft and companion; index 0 is 0 rows."""
        curve = cls(n_max=len(next(iter(target.values()))) - 1)
        curve.target = RowTimes(target, measured=True)
        curve.draft = RowTimes({0: draft}, measured=True)
        curve.companion = RowTimes({0: companion}, measured=True)
        return curve

    @property
    def version(self) -> int:
        """Grows when any table changed by more than a percent."""
        return self.target.version + self.draft.version + self.companion.version

    def observe_target(self, rows: int, ms: float, depth: int = 0) -> None:
        """Learn from one target decode of `rows` rows with logits."""
        first = not self.target.measured
        self.target.observe(rows, ms, depth)
        if first:
            self._follow_target(depth)

    def _follow_target(self, depth: int) -> None:
        """Keep unmeasured draft and companion at their share of the target's one row."""
        one = self.target.table(depth)[1]
        for times, share in zip((self.draft, self.companion), self._shares, strict=False):
            if not times.measured and not times.count(1):
                now = times.table()[1]
                if abs(now - share * one) > 0.05 * now:
                    times.scaled(share * one / now)

    def state(self) -> CurveState:
        """For a profile."""
        return CurveState(self.target.state(), self.draft.state(), self.companion.state())

    @classmethod
    def restore(cls, state: CurveState) -> CostCurve:
        """The inverse of `state`; raises OptionError where the tables contradict each other."""
        for part in (state.target, state.draft, state.companion):
            _check(part)
        curve = cls(n_max=len(state.target.bases[0]) - 1)
        curve.target = RowTimes.restore(state.target)
        curve.draft = RowTimes.restore(state.draft)
        curve.companion = RowTimes.restore(state.companion)
        return curve


def _check(state: RowTimesState) -> None:
    sizes = {len(base) for base in state.bases}
    good = (
        len(state.depths) == len(state.bases) > 0
        and len(set(state.depths)) == len(state.depths)
        and len(sizes) == 1
        and 2 <= min(sizes) <= 4096
        and all(base[0] == 0.0 and all(0.0 < t < 1e7 for t in base[1:]) for base in state.bases)
    )
    if not good:
        raise OptionError("a cost curve's tables contradict each other")
