"""P(the target accepts a drafted token | what is known), learned online.

Acceptance is conditional: position i counts only where all earlier positions of the draft were accepted, since after the
first refusal nothing was observed. `Learned` is all that is learned of a draft, kept together and saved together.
"""

from __future__ import annotations

from math import exp, isfinite, log
from operator import mul
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pyspec.errors import OptionError
from pyspec.policy.lookups import LookupEstimator, LookupState, clamp
from pyspec.policy.types import LOGIT_MAX, TABLE_BINS, Draft, bin_centre, logit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.stopping import Floats

Features = tuple[float, ...]
"""x of the logistic model. The draft alone: 1, logit p / 4, entropy / 3, position / 8, recent acceptance in this sequence,
mean logit p / 4 of the draft's tokens before. With a companion it goes on with S, A, logit Pc / 4, argmax agreement."""

_POSITION = tuple(min(i, 8) / 8.0 for i in range(1025))
_MEMORY = 256.0  # observations a bin looks back on
_PRIOR_WEIGHT = 6.0
_LOSS_MEMORY = 100.0
_HELP = 0.02  # nats a token from which on another view is worth following

# Weights of the draft-only prior: logit(acceptance) = intercept + slope * logit(p), a little under
# the diagonal, since drafts are over-confident away from their training text.
PRIOR_INTERCEPT, PRIOR_SLOPE = -0.3, 0.8

# In the order of the features. With a companion part of the draft's own slope moves to the
# companion's probability and its agreement.
_DRAFT_PRIOR = (PRIOR_INTERCEPT - 0.4, 4.0 * PRIOR_SLOPE, -0.3, 0.0, 0.8, 0.2)
_COMPANION_PRIOR = (-1.2, 2.2, -0.2, 0.0, 0.6, 0.2, 0.3, 0.2, 1.2, 0.5)


def read_draft(draft: Draft, recent: float) -> list[Features]:
    """Features of a draft up to its first value that is no probability or entropy."""
    out: list[Features] = []
    total = 0.0
    for i, (p, entropy) in enumerate(zip(draft.p[: draft.n], draft.entropy, strict=False)):
        if not (0.0 <= p <= 1.0 and entropy >= 0.0):
            break
        own = logit(p) * 0.25
        spread = min(entropy, 6.0) * (1.0 / 3.0)
        out.append((1.0, own, spread, _POSITION[i], recent, total / i if i else 0.0))
        total += own
    return out


def read_companion(draft: Draft, base: list[Features]) -> list[Features] | None:
    """`base` with the companion's features, or None where it did not run or returned nonsense."""
    s, a, pc, agree = draft.s, draft.a, draft.pc, draft.agree
    if s is None or a is None or pc is None or agree is None:
        return None
    n = len(base)
    if not n or min(len(s), len(a), len(pc), len(agree)) < n:
        return None
    if not all(0.0 <= x <= 1.0001 for row in (s[:n], a[:n], pc[:n]) for x in row):
        return None
    return [
        (*x, s[i], a[i], logit(pc[i]) * 0.25, 1.0 if agree[i] else 0.0) for i, x in enumerate(base)
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
        """For a profile."""
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
    return clamp(1.0 / (1.0 + exp(-(PRIOR_INTERCEPT + PRIOR_SLOPE * logit_p))))


def _spread(low: int, high: int) -> list[float]:
    """Two tokens' worth of an even spread over bins low..high - 1."""
    return [2.0 / (high - low) if low <= k < high else 0.0 for k in range(TABLE_BINS)]


class LearnedState(msgspec.Struct):
    """Saved form of Learned."""

    calibration: CalibrationState
    draft: LogisticState
    companion: LogisticState
    lookup: LookupState


class Learned:
    """Calibration, the two logistic models (draft alone, with companion) and the lookup estimator.

    `loss` is the running log-loss (nats a token) of the draft alone. `loss_without` and `loss_with` are those of the two
    models on the very same positions: those the companion scored.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.draft = Logistic(_DRAFT_PRIOR)
        self.companion = Logistic(_COMPANION_PRIOR)
        self.lookup = LookupEstimator()
        self.loss = self.loss_without = self.loss_with = 0.69
        self.scored = 0

    @property
    def companion_helps(self) -> bool:
        """Whether estimates with the companion's features are better: a view that adds nothing only picks lucky drafts."""
        return self.loss_with < self.loss_without - _HELP

    def learn_draft(self, position: int, x: Features, chance: float, accepted: bool) -> None:
        """One observed position of a model draft, and what was predicted of it."""
        self.calibration.update(position, _bin(x), accepted)
        self.draft.learn(x, accepted - chance)
        self.loss += (_nats(chance, accepted) - self.loss) / _LOSS_MEMORY

    def learn_companion(self, x: Features, without: float, with_: float, accepted: bool) -> None:
        """One observed position the companion scored; the two predictions made before it."""
        self.companion.learn(x, accepted - with_)
        self.loss_without += (_nats(without, accepted) - self.loss_without) / _LOSS_MEMORY
        self.loss_with += (_nats(with_, accepted) - self.loss_with) / _LOSS_MEMORY
        self.scored += 1

    def state(self) -> LearnedState:
        """For a profile."""
        return LearnedState(
            self.calibration.state(),
            self.draft.state(),
            self.companion.state(),
            self.lookup.state(),
        )

    @classmethod
    def restore(cls, state: LearnedState) -> Learned:
        """The inverse of `state`; raises OptionError on contradictions."""
        out = cls()
        out.calibration = Calibration.restore(state.calibration)
        out.draft = Logistic.restore(state.draft, len(_DRAFT_PRIOR))
        out.companion = Logistic.restore(state.companion, len(_COMPANION_PRIOR))
        out.lookup = LookupEstimator.restore(state.lookup)
        return out


def _bin(x: Features) -> int:
    """The table's bin of the draft's own probability."""
    return min(int((4.0 * x[1] + LOGIT_MAX) * (TABLE_BINS / (2.0 * LOGIT_MAX))), TABLE_BINS - 1)


def _nats(chance: float, accepted: bool) -> float:
    return -log(chance if accepted else 1.0 - chance)
