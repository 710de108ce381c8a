"""P(the target accepts a drafted token | what is known), learned online.

Acceptance is conditional: position i counts only where all earlier positions of the draft were accepted, since after the
first refusal nothing was observed. `Acceptance` is all that is learned of a draft, kept together and saved together.

A draft's own probability says nearly all that is to be known of a greedy token: entropy, position and how the draft had gone
before, in a logistic model of their own, brought less than 0.1 % on recorded rounds and on the grid. Of a token drawn with the
target's noise it is how far ahead it was with that noise (see native/ps_draft.c). So the table that C multiplies up while it
drafts is the estimate, too.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from math import exp, isfinite, log
from operator import mul
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pyspec.errors import OptionError
from pyspec.noise import Draw
from pyspec.policy.types import LOGIT_MAX, TABLE_BINS, Draft, bin_centre, logit, table_bin

if TYPE_CHECKING:
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
# What a rule and a temperature add to the intercept, by whether the rule relaxes and whether tokens are sampled: of two drafts of
# SmolLM2, a good and a poor one, the target's greedy choice was in 80 and 64 % the token to which the draft gave a probability
# of one half, and the margin rule accepted 92 and 73 % of them.
_EASE: dict[tuple[bool, Draw], float] = {
    (False, "greedy"): 0.6, (False, "apart"): 0.0, (False, "coupled"): 0.3,
    (True, "greedy"): 1.2, (True, "apart"): 0.6, (True, "coupled"): 0.9,
}  # fmt: skip
_COMPANION_PRIOR = (-1.0, 2.4, 0.3, 0.2, 1.2, 0.5)
_RATE, _FORGET, _WEIGHT_MAX = 0.15, 0.995, 20.0  # of the companion's model

_P_LOW, _P_HIGH = 0.002, 0.998


def clamp(p: float) -> float:
    """Keep an estimate away from 0 and 1, so that no log-loss and no survival is extreme."""
    return min(max(p, _P_LOW), _P_HIGH)


def draft_bins(draft: Draft) -> list[int]:
    """The table's bins of a draft's tokens, up to the first value that is no probability."""
    out: list[int] = []
    for p in draft.p[: draft.n]:
        if not 0.0 <= p <= 1.0:
            break
        out.append(table_bin(p))
    return out


def companion_features(draft: Draft, n: int) -> list[Features] | None:
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


class Logistic(msgspec.Struct):
    """The companion's model: online logistic regression with AdaGrad steps whose squares forget, so it follows changes.

    `squares` are the running squares of the gradients. Raises OptionError on another width or wild numbers.
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
        """One step for an error: 1 or 0 observed, minus what was predicted."""
        for i, xi in enumerate(x):
            d = error * xi
            self.squares[i] = _FORGET * self.squares[i] + d * d + 1e-3
            w = self.weights[i] + _RATE * d / self.squares[i] ** 0.5
            self.weights[i] = max(-_WEIGHT_MAX, min(_WEIGHT_MAX, w))


class Calibration(msgspec.Struct, dict=True):
    """Acceptance by the bin of p: `hits` of those `seen`, and with the prior the `table` that C multiplies up while it drafts.

    `first` and `later` count how often each bin turned up at position 0 and behind accepted tokens: what a token that is
    not drafted yet is expected to look like. `ease` is how much likelier than by the draft's word a token is taken to be
    accepted before any was seen, in logits. Raises OptionError on contradictions.
    """

    hits: list[float] = msgspec.field(default_factory=lambda: [0.0] * TABLE_BINS)
    seen: list[float] = msgspec.field(default_factory=lambda: [0.0] * TABLE_BINS)
    first: list[float] = msgspec.field(default_factory=lambda: _spread(10, 26))
    later: list[float] = msgspec.field(default_factory=lambda: _spread(14, 28))
    ease: float = 0.0

    def __post_init__(self) -> None:
        tables = (self.hits, self.seen, self.first, self.later)
        good = (
            all(len(t) == TABLE_BINS for t in tables)
            and all(0.0 <= n < 1e12 for t in tables for n in t)
            and all(h <= n for h, n in zip(self.hits, self.seen, strict=True))
            and sum(self.first) > 0.0
            and sum(self.later) > 0.0
            and abs(self.ease) <= LOGIT_MAX
        )
        if not good:
            raise OptionError("the acceptance table contradicts itself")
        self._prior = [
            clamp(1.0 / (1.0 + exp(-(_INTERCEPT + self.ease + _SLOPE * bin_centre(k)))))
            for k in range(TABLE_BINS)
        ]
        self.table = [self._acceptance(k) for k in range(TABLE_BINS)]

    def update(self, position: int, k: int, accepted: bool) -> None:
        """Learn from one observed position whose draft probability fell into bin k."""
        if self.seen[k] >= _MEMORY:
            self.seen[k] *= 0.5
            self.hits[k] *= 0.5
        self.seen[k] += 1.0
        self.hits[k] += accepted
        self.table[k] = self._acceptance(k)
        counts = self.later if position else self.first
        counts[k] += 1.0
        if counts[k] > _MEMORY:
            counts[:] = [c * 0.5 for c in counts]

    def _acceptance(self, k: int) -> float:
        hits = self.hits[k] + _PRIOR_WEIGHT * self._prior[k]
        return clamp(hits / (self.seen[k] + _PRIOR_WEIGHT))

    def nexts(self) -> tuple[Floats, Floats]:
        """Probabilities of the next token's bins: of a draft's first token, and of a later one."""
        first, later = np.asarray(self.first), np.asarray(self.later)
        return first / first.sum(), later / later.sum()


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


def _lookup_prior(match: int, recent: int, several: int, place: int) -> float:
    """Acceptance assumed of a cell, by its buckets.

    A logistic fit to 21,000 lookup drafts in greedy answers of SmolLM2-135M to its training
    prompts (log-loss 0.397 a token), made cautious; weight, caution and buckets are those that
    lost least in any category when such answers were replayed.
    """
    fit = -0.83 + 0.6 * match + 0.1 * recent - 0.67 * several + (0.65 - 0.08 * match) * place
    return clamp(1.0 / (1.0 + exp(_CAUTION - fit)))


class LookupEstimator(msgspec.Struct):
    """Acceptance by match length, recent success, whether the match had one continuation, and position.

    `mean` and `count` (its weight) by cell; `recent` is the running success of first tokens. Raises OptionError as above.
    """

    mean: list[float] = msgspec.field(
        default_factory=lambda: [_lookup_prior(*cell) for cell in product(*map(range, _SIZES))]
    )
    count: list[float] = msgspec.field(default_factory=lambda: [_LOOKUP_WEIGHT] * _CELLS)
    recent: float = 0.5

    def __post_init__(self) -> None:
        good = (
            len(self.mean) == len(self.count) == _CELLS
            and all(0.0 <= m <= 1.0 for m in (*self.mean, self.recent))
            and all(1.0 <= n <= _LOOKUP_MEMORY for n in self.count)
        )
        if not good:
            raise OptionError("the lookup table contradicts itself")

    def _start(self, match_length: int, choices: int) -> int:
        """The cell of the first position; those of the others follow it."""
        match = sum([match_length >= edge for edge in _MATCHES])
        recent = sum([self.recent >= edge for edge in _RECENT])
        return ((match * _SIZES[1] + recent) * _SIZES[2] + (choices > 1)) * _SIZES[3]

    def predict(self, match_length: int, n: int, choices: int = 1) -> list[float]:
        """Conditional acceptance of positions 0..n-1 of a draft with this match."""
        start = self._start(match_length, choices)
        first, second, third, later = self.mean[start : start + _SIZES[3]]
        return [clamp(p) for p in (first, second, third, third, *([later] * (n - 4)))][:n]

    def update(self, match_length: int, hits: list[bool], choices: int = 1) -> None:
        """Learn from the observed positions of one draft, in order; may be empty."""
        start = self._start(match_length, choices)
        for position, hit in enumerate(hits):
            k = start + sum([position >= edge for edge in _PLACES])
            self.count[k] = min(self.count[k] + 1.0, _LOOKUP_MEMORY)
            self.mean[k] += ((1.0 if hit else 0.0) - self.mean[k]) / self.count[k]
        if hits:
            self.recent += 0.2 * ((1.0 if hits[0] else 0.0) - self.recent)


@dataclass
class Mean:
    """The mean of numbers that come one by one; 0 before the first."""

    value: float = 0.0
    n: int = 0

    def add(self, value: float) -> None:
        """One more."""
        self.n += 1
        self.value += (value - self.value) / self.n


# -- all of it ---------------------------------------------------------------------------------------------------------


class Acceptance(msgspec.Struct, dict=True):
    """The tables for greedy drafts and for coupled ones, the logistic model for drafts a companion scored, lookup's estimator.

    Beside them, of this process alone, log-loss in nats a token: `loss` is the table's mean; `loss_without` and `loss_with` are
    running ones of the table and of the model on the very same positions, those the companion scored, and `both` their means.
    """

    calibration: Calibration = msgspec.field(default_factory=Calibration)
    companion: Logistic = msgspec.field(default_factory=Logistic)
    lookup: LookupEstimator = msgspec.field(default_factory=LookupEstimator)
    coupled: Calibration = msgspec.field(default_factory=Calibration)

    def __post_init__(self) -> None:
        self.loss, self.both = Mean(), (Mean(), Mean())
        self.loss_without = self.loss_with = 0.69

    def under(self, draw: Draw, *, relaxing: bool) -> Acceptance:
        """A copy whose `calibration` is for tokens drawn so, by a rule that relaxes or not: what is not seen yet differs."""
        other = deepcopy(self)
        table = other.coupled if draw == "coupled" else other.calibration
        other.calibration = msgspec.structs.replace(table, ease=_EASE[relaxing, draw])
        return other

    def join(self, known: Acceptance, *, coupled: bool) -> None:
        """`calibration` was taught by greedy drafts, or by coupled ones: of the others, what was known before stays."""
        if coupled:
            self.calibration, self.coupled = known.calibration, self.calibration
        else:
            self.coupled = known.coupled

    @property
    def companion_helps(self) -> bool:
        """Whether estimates with the companion's features are better: a view that adds nothing only picks lucky drafts."""
        return self.loss_with < self.loss_without - _HELP

    def learn_draft(self, position: int, k: int, chance: float, accepted: bool) -> None:
        """One observed position of a model draft, the bin it fell into, and what was predicted of it."""
        self.calibration.update(position, k, accepted)
        self.loss.add(_nats(chance, accepted))

    def learn_companion(self, x: Features, without: float, with_: float, accepted: bool) -> None:
        """One observed position the companion scored; the two predictions made before it."""
        self.companion.learn(x, accepted - with_)
        lost = _nats(without, accepted), _nats(with_, accepted)
        for mean, nats in zip(self.both, lost):
            mean.add(nats)
        self.loss_without += (lost[0] - self.loss_without) / _LOSS_MEMORY
        self.loss_with += (lost[1] - self.loss_with) / _LOSS_MEMORY


def _nats(chance: float, accepted: bool) -> float:
    return -log(chance if accepted else 1.0 - chance)
