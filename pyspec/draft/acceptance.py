"""P(the target accepts a drafted token | what is known), learned online.

Acceptance is conditional: position i counts only where all earlier positions of the draft were accepted, since nothing after a
refusal is observed. `Acceptance` holds all that is learned about a draft, and is saved as one.

For greedy tokens, the draft's own probability predicts acceptance nearly as well as anything can. A logistic model of entropy,
position and the draft's recent success brought less than 0.1 % on recorded rounds and on the grid. For tokens drawn with the
target's noise, the predictor is how far ahead the token was with that noise (see native/ps_draft.c). So the estimate is a table
over this one number, which C multiplies up while it drafts.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import product, takewhile
from math import exp, isfinite
from operator import mul

import msgspec
import numpy as np
from msgspec.structs import astuple

from pyspec.draft.types import (
    MEMORY,
    TABLE_BINS,
    Draft,
    Floats,
    bin_centre,
    clamp,
    logit,
    table_bin,
)
from pyspec.errors import OptionError
from pyspec.sampling.options import Draw

Features = tuple[float, ...]
"""Inputs of the companion's logistic model: 1, logit p / 4, S, A, logit Pc / 4, argmax agreement."""

TEMPERS = 4
"""Factors of the target's temperature at which a draft may draw: PS_N_TEMPERS."""

_LINE_WEIGHT = 24.0  # observations that the line counts for in each bin
_SPREADS = np.array([0.7, 0.25])  # standard deviations of a line's two numbers among drafts
_LOWEST, _HIGHEST = np.array([-6.0, 0.05]), np.array([6.0, 2.0])  # of both
_CENTRES = np.array([[1.0] * TABLE_BINS, [bin_centre(k) for k in range(TABLE_BINS)]])
_REFIT, _FEWEST = 0.1, 4.0  # refit after a tenth more tokens, and at least this many
_STEPS, _FIRST_STEPS = 2, 8  # of Newton's method: from the last fit, and from the prior line

# The prior line of a draft: logit(acceptance) = intercept + slope * logit(p). It lies under the diagonal: drafts are
# over-confident away from their training text. Lines of their own for rules and ways of drawing brought nothing
# (bench/results/grid): a few tokens show where a draft's line lies.
_LINE = np.array([0.0, 0.65])
# With a companion, part of the slope moves to its probability and agreement.
_COMPANION_PRIOR = (-1.0, 2.4, 0.3, 0.2, 1.2, 0.5)
_RATE, _FORGET, _WEIGHT_MAX = 0.15, 0.995, 20.0  # of the companion's model


def draft_bins(draft: Draft) -> list[int]:
    """The table bins of a draft's tokens, up to the first value that is no probability."""
    return [table_bin(p) for p in takewhile(lambda p: 0.0 <= p <= 1.0, draft.p[: draft.n])]


def companion_features(draft: Draft, n: int) -> list[Features] | None:
    """Features of the first n tokens, or None where the companion did not run or returned impossible values."""
    s, a, pc, agree = draft.s, draft.a, draft.pc, draft.agree
    if not n or min(len(s), len(a), len(pc), len(agree)) < n:
        return None
    if not all(0.0 <= x <= 1.0001 for row in (s[:n], a[:n], pc[:n]) for x in row):
        return None
    return [
        (1.0, 0.25 * logit(draft.p[i]), s[i], a[i], 0.25 * logit(pc[i]), float(agree[i]))
        for i in range(n)
    ]


class Logistic(msgspec.Struct):
    """The companion's model: online logistic regression. Raises OptionError for a wrong width, or values out of range.

    Its AdaGrad steps divide by running `squares` of the gradients. These decay, so the model follows changes.
    """

    weights: list[float] = msgspec.field(default_factory=lambda: list(_COMPANION_PRIOR))
    squares: list[float] = msgspec.field(default_factory=lambda: [1.0] * len(_COMPANION_PRIOR))

    def __post_init__(self) -> None:
        good = (
            len(self.weights) == len(self.squares) == len(_COMPANION_PRIOR)
            and all(isfinite(w) and abs(w) <= _WEIGHT_MAX for w in self.weights)
            and all(0.0 < g < 1e9 for g in self.squares)
        )
        if not good:
            raise OptionError("the acceptance weights contradict each other")

    def predict(self, x: Features) -> float:
        """Acceptance probability, always finite and inside (0, 1)."""
        return clamp(1.0 / (1.0 + exp(-max(-6.0, min(6.0, sum(map(mul, self.weights, x)))))))

    def learn(self, x: Features, error: float) -> None:
        """Take one step; the error is 1 or 0 observed, minus the prediction."""
        for i, xi in enumerate(x):
            d = error * xi
            self.squares[i] = _FORGET * self.squares[i] + d * d + 1e-3
            w = self.weights[i] + _RATE * d / self.squares[i] ** 0.5
            self.weights[i] = max(-_WEIGHT_MAX, min(_WEIGHT_MAX, w))


class Calibration(msgspec.Struct, dict=True):
    """Acceptance by the bin of p. Raises OptionError where the numbers contradict each other.

    `table` has acceptance by bin, prior included; C multiplies these up while it drafts.
    """

    # accepted tokens of those seen
    hits: list[float] = msgspec.field(default_factory=lambda: [0.0] * TABLE_BINS)
    seen: list[float] = msgspec.field(default_factory=lambda: [0.0] * TABLE_BINS)
    # how often each bin was that of a draft's first token, and of a later one
    first: list[float] = msgspec.field(default_factory=lambda: _spread(10, 26))
    later: list[float] = msgspec.field(default_factory=lambda: _spread(14, 28))

    def __post_init__(self) -> None:
        tables = (self.hits, self.seen, self.first, self.later)
        good = (
            all(len(t) == TABLE_BINS for t in tables)
            and all(0.0 <= n < 1e12 for t in tables for n in t)
            and all(h <= n for h, n in zip(self.hits, self.seen, strict=True))
            and sum(self.first) > 0.0
            and sum(self.later) > 0.0
        )
        if not good:
            raise OptionError("the acceptance table contradicts itself")
        self._line = _LINE
        self._fit(_FIRST_STEPS)

    def aged(self, weight: float) -> Calibration:
        """The same, counting for `weight` of its observations."""
        hits, seen = ([weight * n for n in counts] for counts in (self.hits, self.seen))
        return msgspec.structs.replace(self, hits=hits, seen=seen)

    def mixed(self, other: Calibration) -> Calibration:
        """Half of this and half of another."""
        pairs = zip(astuple(self), astuple(other))
        return Calibration(*([0.5 * (a + b) for a, b in zip(*both)] for both in pairs))

    def update(self, position: int, k: int, accepted: bool) -> None:
        """Learn from one observed position whose draft probability fell into bin k."""
        if self.seen[k] >= MEMORY:
            self.seen[k] *= 0.5
            self.hits[k] *= 0.5
        self.seen[k] += 1.0
        self.hits[k] += accepted
        self._unfitted -= 1.0
        if self._unfitted <= 0.0:
            self._fit()
        else:
            self.table[k] = self._acceptance(k)
        counts = self.later if position else self.first
        counts[k] += 1.0
        if counts[k] > MEMORY:
            counts[:] = [c * 0.5 for c in counts]

    def _fit(self, steps: int = _STEPS) -> None:
        """Fit the line that all bins share, and recompute the table.

        A draft that is better or worse than assumed is so in every bin, and a few tokens show it.
        """
        seen = np.asarray(self.seen)
        self._line = fit_line(np.asarray(self.hits), seen, self._line, steps)
        chances = 1.0 / (1.0 + np.exp(-(self._line @ _CENTRES)))
        self._prior = [clamp(p) for p in chances.tolist()]
        self.table = [self._acceptance(k) for k in range(TABLE_BINS)]
        self._unfitted = max(_FEWEST, _REFIT * float(seen.sum()))

    def _acceptance(self, k: int) -> float:
        hits = self.hits[k] + _LINE_WEIGHT * self._prior[k]
        return clamp(hits / (self.seen[k] + _LINE_WEIGHT))

    def nexts(self) -> tuple[Floats, Floats]:
        """The probability of each bin for a draft's first token, and for a later one."""
        first, later = np.asarray(self.first), np.asarray(self.later)
        return first / first.sum(), later / later.sum()


def fit_line(hits: Floats, seen: Floats, line: Floats, steps: int) -> Floats:
    """The likeliest intercept and slope of logit(acceptance) over a bin's centre, by Newton's method from `line`.

    _LINE is the mean of their normal priors, _SPREADS the standard deviations. hits, seen: tokens by bin.
    """
    precision = np.diag(1.0 / np.square(_SPREADS))
    for _ in range(steps):
        p = 1.0 / (1.0 + np.exp(-(line @ _CENTRES)))
        slope = _CENTRES @ (hits - seen * p) - precision @ (line - _LINE)
        curvature = (_CENTRES * (seen * p * (1.0 - p))) @ _CENTRES.T + precision
        (a, b), (_, d) = curvature
        u, v = slope
        # numpy.linalg.solve sets a context variable, which must not happen inside a garbage collection (github.com/python/cpython
        # issue 148891, Python 3.10 and 3.11): a model that is collected keeps what it learned, and comes here
        step = np.array([d * u - b * v, a * v - b * u]) / (a * d - b * b)
        step = np.clip(step, -1.0, 1.0)  # Newton's may leap where p is near 0 or 1
        line = np.clip(line + step, _LOWEST, _HIGHEST)
    return line


def _spread(low: int, high: int) -> list[float]:
    """Two tokens' worth of an even spread over bins low..high - 1."""
    return [2.0 / (high - low) if low <= k < high else 0.0 for k in range(TABLE_BINS)]


_MATCHES = (2, 3, 4, 6, 9, 14, 24)  # first match length of buckets 1..7
_PLACES = (1, 2, 4)  # first position of buckets 1..3
_SIZES = (len(_MATCHES) + 1, len(_PLACES) + 1)
_CELLS = _SIZES[0] * _SIZES[1]
_LOOKUP_WEIGHT = 6.0  # observations that a prior counts for
_CAUTION = 1.0  # subtracted from a prior's log-odds: a wasted check costs more than a missed one


def _lookup_prior(match: int, place: int) -> float:
    """Prior acceptance of a cell, by its buckets.

    A logistic fit to 21,000 lookup drafts in greedy answers of SmolLM2-135M to its training prompts (log-loss 0.397 per token),
    made cautious. Weight, caution and buckets are those with the smallest worst loss over categories when such answers were
    replayed.
    """
    fit = -0.73 + 0.6 * match + (0.65 - 0.08 * match) * place
    return clamp(1.0 / (1.0 + exp(_CAUTION - fit)))


class LookupEstimator(msgspec.Struct):
    """Acceptance by match length and position. Raises OptionError where the numbers contradict each other."""

    mean: list[float] = msgspec.field(
        default_factory=lambda: [_lookup_prior(*cell) for cell in product(*map(range, _SIZES))]
    )
    count: list[float] = msgspec.field(default_factory=lambda: [_LOOKUP_WEIGHT] * _CELLS)
    """The weight of each mean, in observations."""

    def __post_init__(self) -> None:
        good = (
            len(self.mean) == len(self.count) == _CELLS
            and all(0.0 <= m <= 1.0 for m in self.mean)
            and all(1.0 <= n <= MEMORY for n in self.count)
        )
        if not good:
            raise OptionError("the lookup table contradicts itself")

    def _start(self, match_length: int) -> int:
        """The cell of a draft's first position; the cells of later positions follow it."""
        return sum([match_length >= edge for edge in _MATCHES]) * _SIZES[1]

    def predict(self, match_length: int, n: int) -> list[float]:
        """Conditional acceptance of positions 0..n-1 of a draft with this match."""
        start = self._start(match_length)
        first, second, third, later = self.mean[start : start + _SIZES[1]]
        return [clamp(p) for p in (first, second, third, third, *([later] * (n - 4)))][:n]

    def update(self, match_length: int, hits: list[bool]) -> None:
        """Learn from the observed positions of one draft, in order; there may be none."""
        start = self._start(match_length)
        for position, hit in enumerate(hits):
            k = start + sum([position >= edge for edge in _PLACES])
            self.count[k] = min(self.count[k] + 1.0, MEMORY)
            self.mean[k] += ((1.0 if hit else 0.0) - self.mean[k]) / self.count[k]


class Acceptance(msgspec.Struct):
    """All that is learned about acceptance."""

    calibration: Calibration = msgspec.field(default_factory=Calibration)  # in use
    companion: Logistic = msgspec.field(default_factory=Logistic)
    lookup: LookupEstimator = msgspec.field(default_factory=LookupEstimator)
    # of tokens drawn with the target's noise
    coupled: Calibration = msgspec.field(default_factory=Calibration)

    def under(self, draw: Draw) -> Acceptance:
        """A copy whose `calibration` is for tokens drawn this way."""
        other = deepcopy(self)
        if draw == "coupled":
            other.calibration = other.coupled
        return other

    def taught(self, calibration: Calibration, lookup: LookupEstimator | None) -> None:
        """Go on from what an earlier process was taught."""
        self.calibration = deepcopy(calibration)
        if lookup is not None:
            self.lookup = deepcopy(lookup)
