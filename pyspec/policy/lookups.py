"""How often the tokens of lookup drafts are accepted."""

from __future__ import annotations

from itertools import product
from math import exp

import msgspec

from pyspec.errors import OptionError

_P_LOW, _P_HIGH = 0.002, 0.998

_MATCHES = (2, 3, 4, 6, 9, 14, 24)  # first match length of buckets 1..7
_RECENT = (0.35, 0.75)  # first running success of buckets 1, 2
_PLACES = (1, 2, 4)  # first position of buckets 1..3
_SIZES = (len(_MATCHES) + 1, len(_RECENT) + 1, 2, len(_PLACES) + 1)
_CELLS = _SIZES[0] * _SIZES[1] * _SIZES[2] * _SIZES[3]
_PRIOR_WEIGHT, _MEMORY = 6.0, 128.0
_CAUTION = 1.0  # subtracted from a prior log-odds: a vain check costs more than a missed one


def clamp(p: float) -> float:
    """Keep an estimate away from 0 and 1, so that no log-loss and no survival is extreme."""
    return min(max(p, _P_LOW), _P_HIGH)


class LookupState(msgspec.Struct):
    """Saved form of LookupEstimator."""

    mean: list[float]
    count: list[float]
    recent: float


def _prior(match: int, recent: int, several: int, place: int) -> float:
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
        self._mean = [_prior(*cell) for cell in product(*map(range, _SIZES))]
        self._count = [_PRIOR_WEIGHT] * _CELLS
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
            self._count[k] = min(self._count[k] + 1.0, _MEMORY)
            self._mean[k] += ((1.0 if hit else 0.0) - self._mean[k]) / self._count[k]
        if hits:
            self.recent += 0.2 * ((1.0 if hits[0] else 0.0) - self.recent)

    def state(self) -> LookupState:
        """For a profile."""
        return LookupState(list(self._mean), list(self._count), self.recent)

    @classmethod
    def restore(cls, state: LookupState) -> LookupEstimator:
        """The inverse of `state`; raises OptionError on contradictions."""
        good = (
            len(state.mean) == len(state.count) == _CELLS
            and all(0.0 <= m <= 1.0 for m in (*state.mean, state.recent))
            and all(1.0 <= n <= _MEMORY for n in state.count)
        )
        if not good:
            raise OptionError("the lookup table contradicts itself")
        out = cls()
        out._mean, out._count, out.recent = list(state.mean), list(state.count), state.recent
        return out


class TextRecord:
    """What lookup drafts of one text kept of what was expected of them, at most all of it.

    Match lengths say the same of every text, and texts differ: in one that only seems to repeat itself the best of
    many matches disappoint, and where rows are dear nothing but the best is tried. Weights found by replaying answers.
    """

    _GRANTED = 4.0  # expected tokens that count as kept before the first draft of a text
    _CARRIED = 0.7  # what the next text inherits of a shortfall

    def __init__(self) -> None:
        self._kept = self._expected = self._GRANTED

    @property
    def share(self) -> float:
        """Accepted of expected."""
        return min(1.0, self._kept / self._expected)

    def add(self, expected: float, accepted: int) -> None:
        """A draft was verified, or its first token seen to be right or wrong."""
        self._expected += expected
        self._kept += accepted

    def begin(self) -> None:
        """The next text; nothing changes where the last one had no drafts."""
        if self._expected != self._GRANTED:
            self._kept = self._GRANTED * (1.0 - self._CARRIED * (1.0 - self.share))
            self._expected = self._GRANTED
