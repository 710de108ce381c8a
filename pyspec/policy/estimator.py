"""P(the target accepts a drafted token | what is known), learned online.

Acceptance is conditional: position i counts only where all earlier positions of the draft were
accepted, since after the first refusal nothing was observed. Callers keep to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import exp, isfinite, log
from operator import mul
from typing import TYPE_CHECKING

import msgspec

from pyspec.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.features import Features

MAX_CELLS = 272
"""As many adaptive bins as the paper on speculative verification uses."""

_P_LOW, _P_HIGH = 0.002, 0.998
_GRID = 64
_ROOT = 4  # cells a side before any split: 16 + 85 * 3 = 271
_LOSS_DECAY = 0.99


def clamp(p: float) -> float:
    """Keep an estimate away from 0 and 1, so that no log-loss and no survival is extreme."""
    if p < _P_LOW:
        return _P_LOW
    return min(p, _P_HIGH)


class Estimator(ABC):
    """One way to estimate acceptance."""

    @abstractmethod
    def predict(self, f: Features) -> float:
        """Acceptance probability in (0, 1), always finite."""

    @abstractmethod
    def update(self, f: Features, accepted: bool) -> None:
        """Learn from one observed position."""


class BinsState(msgspec.Struct):
    """Saved form of AdaptiveBins: the cell of each grid point, and each cell's statistics."""

    cell_of: list[int]
    size: list[int]
    corner: list[int]
    mean: list[float]
    count: list[float]


class AdaptiveBins(Estimator):
    """Mean acceptance in 2-D bins over (u, v), split in four where data are dense.

    A 64 x 64 grid points to cells, so a look-up costs the same however fine the cells are.
    Means forget: the step never falls under 1/`memory`.
    """

    def __init__(self, split_at: int = 48, memory: int = 128) -> None:
        side = _GRID // _ROOT
        self._split_at = split_at
        self._memory = float(memory)
        self._cell_of = [
            (r // side) * _ROOT + c // side for r in range(_GRID) for c in range(_GRID)
        ]
        cells = _ROOT * _ROOT
        self._size = [side] * cells
        self._corner = [(k // _ROOT) * side * _GRID + (k % _ROOT) * side for k in range(cells)]
        self._mean = [0.5] * cells
        self._count = [0.0] * cells

    def seed(self, prior: Sequence[float], weight: float = 4.0) -> None:
        """Set the mean of the root cells, row by row of u, each worth `weight` observations."""
        for k, mean in enumerate(prior[: len(self._mean)]):
            self._mean[k], self._count[k] = clamp(mean), weight

    @property
    def cells(self) -> int:
        """How many bins there are now."""
        return len(self._mean)

    def _cell(self, f: Features) -> int:
        # u, v are in [0, 1]; 63.999 keeps 1.0 in the last row.
        return self._cell_of[int(f.u * 63.999) * _GRID + int(f.v * 63.999)]

    def predict(self, f: Features) -> float:
        """See Estimator."""
        p = self._mean[self._cell_of[int(f.u * 63.999) * _GRID + int(f.v * 63.999)]]
        if p < _P_LOW:
            return _P_LOW
        return p if p < _P_HIGH else _P_HIGH  # noqa: FURB136 - twice as fast as min

    def update(self, f: Features, accepted: bool) -> None:
        """See Estimator."""
        k = self._cell(f)
        n = self._count[k] + 1.0
        self._count[k] = n
        step = 1.0 / (n + 1.0) if n < self._memory else 1.0 / self._memory
        self._mean[k] += step * ((1.0 if accepted else 0.0) - self._mean[k])
        if n >= self._split_at and self._size[k] > 1 and len(self._mean) + 3 <= MAX_CELLS:
            self._split(k)

    def _split(self, k: int) -> None:
        """Quarter cell k; children start from its mean with the weight of a few observations."""
        half = self._size[k] // 2
        corner = self._corner[k]
        for dr, dc in ((0, 0), (0, half), (half, 0), (half, half)):
            child = k if dr == dc == 0 else len(self._mean)
            start = corner + dr * _GRID + dc
            if child != k:
                self._mean.append(self._mean[k])
                self._count.append(0.0)
                self._size.append(0)
                self._corner.append(start)
            self._size[child] = half
            self._count[child] = 8.0
            for r in range(half):
                row = start + r * _GRID
                self._cell_of[row : row + half] = [child] * half

    def state(self) -> BinsState:
        """For a profile."""
        return BinsState(
            list(self._cell_of),
            list(self._size),
            list(self._corner),
            list(self._mean),
            list(self._count),
        )

    @classmethod
    def restore(cls, state: BinsState) -> AdaptiveBins:
        """The inverse of `state`; raises OptionError on a table that contradicts itself."""
        cells = len(state.mean)
        good = (
            len(state.cell_of) == _GRID * _GRID
            and 1 <= cells <= MAX_CELLS
            and len(state.size) == len(state.corner) == len(state.count) == cells
            and all(0 <= k < cells for k in state.cell_of)
            and all(0.0 <= m <= 1.0 for m in state.mean)
            and all(0.0 <= n < 1e12 for n in state.count)
            and all(
                1 <= z <= _GRID and c >= 0 and c // _GRID + z <= _GRID and c % _GRID + z <= _GRID
                for z, c in zip(state.size, state.corner, strict=False)
            )
        )
        if not good:
            raise OptionError("the acceptance bins contradict each other")
        bins = cls()
        bins._cell_of, bins._size = list(state.cell_of), list(state.size)
        bins._corner = list(state.corner)
        bins._mean, bins._count = list(state.mean), list(state.count)
        return bins


class LogisticState(msgspec.Struct):
    """Saved form of Logistic: weights and the running squares of their gradients."""

    weights: list[float]
    squares: list[float]


class Logistic(Estimator):
    """Online logistic regression with AdaGrad steps whose squares forget, so it follows changes."""

    def __init__(self, weights: Sequence[float], rate: float = 0.15, forget: float = 0.995) -> None:
        self._w = list(weights)
        self._g = [1.0] * len(self._w)
        self._rate, self._forget = rate, forget

    def predict(self, f: Features) -> float:
        """See Estimator."""
        z = sum(map(mul, self._w, f.x))
        if z > 6.0:
            return _P_HIGH
        return 1.0 / (1.0 + exp(-z)) if z > -6.0 else _P_LOW

    def update(self, f: Features, accepted: bool) -> None:
        """See Estimator."""
        self.learn(f.x, (1.0 if accepted else 0.0) - self.predict(f))

    def learn(self, x: Sequence[float], error: float) -> None:
        """One step for an error (observed minus predicted) that the caller has at hand."""
        w, g, rate, forget = self._w, self._g, self._rate, self._forget
        for i, xi in enumerate(x):
            d = error * xi
            square = g[i] = forget * g[i] + d * d + 1e-3
            wi = w[i] + rate * d / square**0.5
            w[i] = wi if -20.0 < wi < 20.0 else (20.0 if wi > 0.0 else -20.0)

    def state(self) -> LogisticState:
        """For a profile."""
        return LogisticState(list(self._w), list(self._g))

    @classmethod
    def restore(cls, state: LogisticState, width: int) -> Logistic:
        """The inverse of `state`; raises OptionError on another width or wild numbers."""
        good = (
            len(state.weights) == len(state.squares) == width
            and all(isfinite(w) and abs(w) <= 20.0 for w in state.weights)
            and all(0.0 < g < 1e9 for g in state.squares)
        )
        if not good:
            raise OptionError("the acceptance weights contradict each other")
        model = cls(state.weights)
        model._g = list(state.squares)
        return model


class MixState(msgspec.Struct):
    """Saved form of Mix."""

    bins: BinsState
    logistic: LogisticState
    loss_bins: float
    loss_logistic: float


class Mix(Estimator):
    """Both estimators; the one with the lower running log-loss decides.

    Losses are in nats, exponentially decayed over about 100 observations, and start equal with
    the logistic model ahead, because it generalises from the first observation on.
    """

    def __init__(self, bins: AdaptiveBins, logistic: Logistic) -> None:
        self.bins, self.logistic = bins, logistic
        self.loss_bins, self.loss_logistic = 0.70, 0.69

    def predict(self, f: Features) -> float:
        """See Estimator."""
        best = self.bins if self.loss_bins < self.loss_logistic else self.logistic
        return best.predict(f)

    def update(self, f: Features, accepted: bool) -> None:
        """See Estimator."""
        pb, pl = self.bins.predict(f), self.logistic.predict(f)
        y = 1.0 if accepted else 0.0
        lb, ll = (-log(pb), -log(pl)) if accepted else (-log(1.0 - pb), -log(1.0 - pl))
        self.loss_bins += (1.0 - _LOSS_DECAY) * (lb - self.loss_bins)
        self.loss_logistic += (1.0 - _LOSS_DECAY) * (ll - self.loss_logistic)
        self.bins.update(f, accepted)
        self.logistic.learn(f.x, y - pl)

    @property
    def chosen(self) -> str:
        """Which estimator decides now: "bins" or "logistic"."""
        return "bins" if self.loss_bins < self.loss_logistic else "logistic"

    @property
    def loss(self) -> float:
        """Running log-loss of the one that decides, nats per observed token."""
        return min(self.loss_bins, self.loss_logistic)

    def state(self) -> MixState:
        """For a profile."""
        return MixState(
            self.bins.state(), self.logistic.state(), self.loss_bins, self.loss_logistic
        )

    @classmethod
    def restore(cls, state: MixState, width: int) -> Mix:
        """The inverse of `state`; raises OptionError on contradictions."""
        if not (0.0 <= state.loss_bins < 20.0 and 0.0 <= state.loss_logistic < 20.0):
            raise OptionError("the acceptance losses are out of range")
        mix = cls(AdaptiveBins.restore(state.bins), Logistic.restore(state.logistic, width))
        mix.loss_bins, mix.loss_logistic = state.loss_bins, state.loss_logistic
        return mix
