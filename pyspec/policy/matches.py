"""P(the target accepts a token drafted by lookup | its match), learned online."""

from __future__ import annotations

from itertools import product
from math import exp

import msgspec

from pyspec.errors import OptionError
from pyspec.policy.types import clamp

_MATCHES = (2, 3, 4, 6, 9, 14, 24)  # first match length of buckets 1..7
_RECENT = (0.35, 0.75)  # first running success of buckets 1, 2
_PLACES = (1, 2, 4)  # first position of buckets 1..3
_SIZES = (len(_MATCHES) + 1, len(_RECENT) + 1, 2, len(_PLACES) + 1)
_CELLS = _SIZES[0] * _SIZES[1] * _SIZES[2] * _SIZES[3]
_LOOKUP_WEIGHT, _LOOKUP_MEMORY = 6.0, 128.0
_CAUTION = 1.0  # subtracted from a prior's log-odds: a wasted check costs more than a missed one


def _lookup_prior(match: int, recent: int, several: int, place: int) -> float:
    """Prior acceptance of a cell, by its buckets.

    A logistic fit to 21,000 lookup drafts in greedy answers of SmolLM2-135M to its training prompts (log-loss 0.397 per token),
    made cautious. Weight, caution and buckets are those with the smallest worst loss over categories when such answers were
    replayed.
    """
    fit = -0.83 + 0.6 * match + 0.1 * recent - 0.67 * several + (0.65 - 0.08 * match) * place
    return clamp(1.0 / (1.0 + exp(_CAUTION - fit)))


class LookupEstimator(msgspec.Struct):
    """Acceptance by match length, recent success, whether the match had several continuations, and position.

    Attributes:
        mean: acceptance by cell.
        count: the weight of each mean, in observations.
        recent: the running success of first tokens.

    Raises:
        OptionError: the numbers contradict each other.
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
        """The cell of a draft's first position; the cells of later positions follow it."""
        match = sum([match_length >= edge for edge in _MATCHES])
        recent = sum([self.recent >= edge for edge in _RECENT])
        return ((match * _SIZES[1] + recent) * _SIZES[2] + (choices > 1)) * _SIZES[3]

    def predict(self, match_length: int, n: int, choices: int = 1) -> list[float]:
        """Conditional acceptance of positions 0..n-1 of a draft with this match."""
        start = self._start(match_length, choices)
        first, second, third, later = self.mean[start : start + _SIZES[3]]
        return [clamp(p) for p in (first, second, third, third, *([later] * (n - 4)))][:n]

    def update(self, match_length: int, hits: list[bool], choices: int = 1) -> None:
        """Learn from the observed positions of one draft, in order; there may be none."""
        start = self._start(match_length, choices)
        for position, hit in enumerate(hits):
            k = start + sum([position >= edge for edge in _PLACES])
            self.count[k] = min(self.count[k] + 1.0, _LOOKUP_MEMORY)
            self.mean[k] += ((1.0 if hit else 0.0) - self.mean[k]) / self.count[k]
        if hits:
            self.recent += 0.2 * ((1.0 if hits[0] else 0.0) - self.recent)
