"""P(the target accepts a drafted token | what is known), learned online.

Acceptance is conditional: position i counts only where all earlier positions of the draft were accepted, since after the
first refusal nothing was observed. `Learned` is all that is learned of a draft, kept together and saved together.

A draft's own probability says nearly all that is to be known of its token: entropy, position and how the draft had gone before,
in a logistic model of their own, brought less than 0.1 % on recorded rounds and on the grid. So the table that C multiplies up
while it drafts is the estimate, too.
"""

from __future__ import annotations

from itertools import product
from math import exp, isfinite, log
from operator import mul
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pyspec.errors import OptionError
from pyspec.policy.types import TABLE_BINS, Draft, bin_centre, logit, table_bin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.types import Floats

Features = tuple[float, ...]
"""What the companion adds, for its logistic model: 1, logit p / 4, S, A, logit Pc / 4, argmax agreement."""

_MEMORY = 256.0  # observations a bin looks back on
_PRIOR_WEIGHT = 6.0
_LOSS_MEMORY = 100.0
_HELP = 0.02  # nats a token from which on another view is worth following

# logit(acceptance) = intercept + slope * logit(p) at first: a little under the diagonal, since drafts are over-confident away
# from their training text. With a companion part of the slope moves to its probability and agreement.
_INTERCEPT, _SLOPE = -0.3, 0.8
_COMPANION_PRIOR = (-1.0, 2.4, 0.3, 0.2, 1.2, 0.5)


_P_LOW, _P_HIGH = 0.002, 0.998


def clamp(p: float) -> float:
    """Keep an estimate away from 0 and 1, so that no log-loss and no survival is extreme."""
    return min(max(p, _P_LOW), _P_HIGH)


def read_draft(draft: Draft) -> list[int]:
    """The table's bins of a draft's tokens, up to the first value that is no probability."""
    out: list[int] = []
    for p in draft.p[: draft.n]:
        if not 0.0 <= p <= 1.0:
            break
        out.append(table_bin(p))
    return out


def read_companion(draft: Draft, n: int) -> list[Features] | None:
    """Features of the first n tokens, or None where the companion did not run or returned nonsense."""
    s, a, pc, agree = draft.s, draft.a, draft.pc, draft.agree
    if s is None or a is None or pc is None or agree is None:
        return None
    if not n or min(len(s), len(a), len(pc), len(agree)) < n:
        return None
    if not all(0.0 <= x <= 1.0001 for row in (s[:n], a[:n], pc[:n]) for x in row):
        return None
    return [
        (1.0, 0.25 * logit(draft.p[i]), s[i], a[i], 0.25 * logit(pc[i]), float(agree[i]))
        for i in range(n)
    ]


class LogisticState(msgspec.Struct):
    """Saved form of Logistic: weights and the running squares of their gradients."""

    weights: list[float]
    squares: list[float]


class Logistic:
    """Online logistic regression with AdaGrad steps whose squares forget, so it follows changes."""

    def __init__(self, weights: Sequence[float], rate: float = 0.15, forget: float = 0.995) -> None:
        self._w = list(weights)
        self._g = [1.0] * len(self._w)
        self._rate, self._forget = rate, forget

    def predict(self, x: Features) -> float:
        """Acceptance probability, always finite and inside (0, 1)."""
        z = sum(map(mul, self._w, x))
        if z > 6.0:
            return 0.998
        return 1.0 / (1.0 + exp(-z)) if z > -6.0 else 0.002

    def learn(self, x: Features, error: float) -> None:
        """One step for an error: 1 or 0 observed, minus what was predicted."""
        w, g, rate, forget = self._w, self._g, self._rate, self._forget
        for i, xi in enumerate(x):
            d = error * xi
            square = g[i] = forget * g[i] + d * d + 1e-3
            wi = w[i] + rate * d / square**0.5
            w[i] = wi if -20.0 < wi < 20.0 else (20.0 if wi > 0.0 else -20.0)

    def state(self) -> LogisticState:
        """What a profile keeps of it; `restore` is the way back."""
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


class CalibrationState(msgspec.Struct):
    """Saved form of Calibration."""

    hits: list[float]
    seen: list[float]
    first: list[float]
    later: list[float]


class Calibration:
    """Acceptance by the bin of p, which is the table that C multiplies up while it drafts.

    `first` and `later` count how often each bin turned up at position 0 and behind accepted tokens: what a token that is
    not drafted yet is expected to look like.
    """

    def __init__(self) -> None:
        self._hits = [0.0] * TABLE_BINS
        self._seen = [0.0] * TABLE_BINS
        self._prior = [_prior_acceptance(bin_centre(k)) for k in range(TABLE_BINS)]
        self.table = list(self._prior)
        self.first, self.later = _spread(10, 26), _spread(14, 28)

    def update(self, position: int, k: int, accepted: bool) -> None:
        """Learn from one observed position whose draft probability fell into bin k."""
        if self._seen[k] >= _MEMORY:
            self._seen[k] *= 0.5
            self._hits[k] *= 0.5
        self._seen[k] += 1.0
        self._hits[k] += accepted
        self._refresh(k)
        counts = self.later if position else self.first
        counts[k] += 1.0
        if counts[k] > _MEMORY:
            counts[:] = [c * 0.5 for c in counts]

    def _refresh(self, k: int) -> None:
        weight = self._seen[k] + _PRIOR_WEIGHT
        self.table[k] = clamp((self._hits[k] + _PRIOR_WEIGHT * self._prior[k]) / weight)

    def nexts(self) -> tuple[Floats, Floats]:
        """Probabilities of the next token's bins: of a draft's first token, and of a later one."""
        first, later = np.asarray(self.first), np.asarray(self.later)
        return first / first.sum(), later / later.sum()

    def state(self) -> CalibrationState:
        """What a profile keeps of it; `restore` is the way back."""
        return CalibrationState(*map(list, (self._hits, self._seen, self.first, self.later)))

    @classmethod
    def restore(cls, state: CalibrationState) -> Calibration:
        """The inverse of `state`; raises OptionError on contradictions."""
        tables = (state.hits, state.seen, state.first, state.later)
        good = (
            all(len(t) == TABLE_BINS for t in tables)
            and all(0.0 <= n < 1e12 for t in tables for n in t)
            and all(h <= n for h, n in zip(state.hits, state.seen, strict=True))
            and sum(state.first) > 0.0
            and sum(state.later) > 0.0
        )
        if not good:
            raise OptionError("the acceptance table contradicts itself")
        out = cls()
        out._hits, out._seen = list(state.hits), list(state.seen)
        out.first, out.later = list(state.first), list(state.later)
        for k in range(TABLE_BINS):
            out._refresh(k)
        return out


def _prior_acceptance(logit_p: float) -> float:
    return clamp(1.0 / (1.0 + exp(-(_INTERCEPT + _SLOPE * logit_p))))


def _spread(low: int, high: int) -> list[float]:
    """Two tokens' worth of an even spread over bins low..high - 1."""
    return [2.0 / (high - low) if low <= k < high else 0.0 for k in range(TABLE_BINS)]


# -- prompt lookup -----------------------------------------------------------------------------------------------------

_MATCHES = (2, 3, 4, 6, 9, 14, 24)  # first match length of buckets 1..7
_RECENT = (0.35, 0.75)  # first running success of buckets 1, 2
_PLACES = (1, 2, 4)  # first position of buckets 1..3
_SIZES = (len(_MATCHES) + 1, len(_RECENT) + 1, 2, len(_PLACES) + 1)
_CELLS = _SIZES[0] * _SIZES[1] * _SIZES[2] * _SIZES[3]
_LOOKUP_WEIGHT, _LOOKUP_MEMORY = 6.0, 128.0
_CAUTION = 1.0  # subtracted from a prior log-odds: a vain check costs more than a missed one


class LookupState(msgspec.Struct):
    """Saved form of LookupEstimator."""

    mean: list[float]
    count: list[float]
    recent: float


def _lookup_prior(match: int, recent: int, several: int, place: int) -> float:
    """Acceptance assumed of a cell, by its buckets.

    A logistic fit to 21,000 lookup drafts in greedy answers of SmolLM2-135M to its training
    prompts (log-loss 0.397 a token), made cautious; weight, caution and buckets are those that
    lost least in any category when such answers were replayed.
    """
    fit = -0.83 + 0.6 * match + 0.1 * recent - 0.67 * several + (0.65 - 0.08 * match) * place
    return clamp(1.0 / (1.0 + exp(_CAUTION - fit)))


class LookupEstimator:
    """Acceptance by match length, recent success, whether the match had one continuation, and position."""

    def __init__(self) -> None:
        self._mean = [_lookup_prior(*cell) for cell in product(*map(range, _SIZES))]
        self._count = [_LOOKUP_WEIGHT] * _CELLS
        self.recent = 0.5

    def _start(self, match_length: int, choices: int) -> int:
        """The cell of the first position; those of the others follow it."""
        match = sum([match_length >= edge for edge in _MATCHES])
        recent = sum([self.recent >= edge for edge in _RECENT])
        return ((match * _SIZES[1] + recent) * _SIZES[2] + (choices > 1)) * _SIZES[3]

    def predict(self, match_length: int, n: int, choices: int = 1) -> list[float]:
        """Conditional acceptance of positions 0..n-1 of a draft with this match."""
        start = self._start(match_length, choices)
        first, second, third, later = self._mean[start : start + _SIZES[3]]
        return [clamp(p) for p in (first, second, third, third, *([later] * (n - 4)))][:n]

    def update(self, match_length: int, hits: list[bool], choices: int = 1) -> None:
        """Learn from the observed positions of one draft, in order; may be empty."""
        start = self._start(match_length, choices)
        for position, hit in enumerate(hits):
            k = start + sum([position >= edge for edge in _PLACES])
            self._count[k] = min(self._count[k] + 1.0, _LOOKUP_MEMORY)
            self._mean[k] += ((1.0 if hit else 0.0) - self._mean[k]) / self._count[k]
        if hits:
            self.recent += 0.2 * ((1.0 if hits[0] else 0.0) - self.recent)

    def state(self) -> LookupState:
        """What a profile keeps of it; `restore` is the way back."""
        return LookupState(list(self._mean), list(self._count), self.recent)

    @classmethod
    def restore(cls, state: LookupState) -> LookupEstimator:
        """The inverse of `state`; raises OptionError on contradictions."""
        good = (
            len(state.mean) == len(state.count) == _CELLS
            and all(0.0 <= m <= 1.0 for m in (*state.mean, state.recent))
            and all(1.0 <= n <= _LOOKUP_MEMORY for n in state.count)
        )
        if not good:
            raise OptionError("the lookup table contradicts itself")
        out = cls()
        out._mean, out._count, out.recent = list(state.mean), list(state.count), state.recent
        return out


# -- all of it ---------------------------------------------------------------------------------------------------------


class LearnedState(msgspec.Struct):
    """Saved form of Learned."""

    calibration: CalibrationState
    companion: LogisticState
    lookup: LookupState


class Learned:
    """The table for drafts, the logistic model for drafts that a companion scored, and the lookup estimator.

    `loss` is the table's running log-loss (nats a token). `loss_without` and `loss_with` are those of the table and of the
    model on the very same positions: those the companion scored.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.companion = Logistic(_COMPANION_PRIOR)
        self.lookup = LookupEstimator()
        self.loss = self.loss_without = self.loss_with = 0.69
        self.scored = 0

    @property
    def companion_helps(self) -> bool:
        """Whether estimates with the companion's features are better: a view that adds nothing only picks lucky drafts."""
        return self.loss_with < self.loss_without - _HELP

    def learn_draft(self, position: int, k: int, chance: float, accepted: bool) -> None:
        """One observed position of a model draft, the bin it fell into, and what was predicted of it."""
        self.calibration.update(position, k, accepted)
        self.loss += (_nats(chance, accepted) - self.loss) / _LOSS_MEMORY

    def learn_companion(self, x: Features, without: float, with_: float, accepted: bool) -> None:
        """One observed position the companion scored; the two predictions made before it."""
        self.companion.learn(x, accepted - with_)
        self.loss_without += (_nats(without, accepted) - self.loss_without) / _LOSS_MEMORY
        self.loss_with += (_nats(with_, accepted) - self.loss_with) / _LOSS_MEMORY
        self.scored += 1

    def state(self) -> LearnedState:
        """What a profile keeps of it; `restore` is the way back."""
        return LearnedState(
            self.calibration.state(),
            self.companion.state(),
            self.lookup.state(),
        )

    @classmethod
    def restore(cls, state: LearnedState) -> Learned:
        """The inverse of `state`; raises OptionError on contradictions."""
        out = cls()
        out.calibration = Calibration.restore(state.calibration)
        out.companion = Logistic.restore(state.companion, len(_COMPANION_PRIOR))
        out.lookup = LookupEstimator.restore(state.lookup)
        return out


def _nats(chance: float, accepted: bool) -> float:
    return -log(chance if accepted else 1.0 - chance)
