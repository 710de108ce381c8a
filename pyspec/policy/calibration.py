"""Running acceptance tables of model drafts: by the draft's own probability, and by position."""

from __future__ import annotations

from functools import lru_cache
from math import exp
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from pyspec.errors import OptionError
from pyspec.policy.choose import GRID, Floats
from pyspec.policy.estimator import clamp
from pyspec.policy.features import bin_centre
from pyspec.policy.types import TABLE_BINS

if TYPE_CHECKING:
    from collections.abc import Callable

POSITIONS = 16
_PRIOR_WEIGHT = 6.0
_MEMORY = 256.0
_GRADE_EDGES = (0.6, 0.8, 0.92)
GRADES = len(_GRADE_EDGES) + 1
_MOOD_EDGES = (0.4, 0.75)
MOODS = len(_MOOD_EDGES) + 1
_ANY = MOODS  # index of the statistics over all moods
_SPREADS = ((8, 24), (12, 27), (16, 29), (20, 32))  # bins assumed for each grade at first

# Weights of the draft-only prior: logit(acceptance) = intercept + slope * logit(p), a little under
# the diagonal, since drafts are over-confident away from their training text.
PRIOR_INTERCEPT, PRIOR_SLOPE = -0.3, 0.8


def prior_acceptance(logit_p: float) -> float:
    """Acceptance assumed for a draft probability before anything was observed."""
    return clamp(1.0 / (1.0 + exp(-(PRIOR_INTERCEPT + PRIOR_SLOPE * logit_p))))


def grade(survival: float, tokens: int) -> int:
    """How well a draft of so many tokens has gone, from the mean acceptance in its survival."""
    mean = survival ** (1.0 / tokens) if tokens > 1 else survival
    return (mean >= _GRADE_EDGES[0]) + (mean >= _GRADE_EDGES[1]) + (mean >= _GRADE_EDGES[2])


def mood(recent: float) -> int:
    """How well drafts have gone lately, from the running acceptance of a sequence."""
    return (recent >= _MOOD_EDGES[0]) + (recent >= _MOOD_EDGES[1])


@lru_cache(maxsize=64)
def _grid_grades(tokens: int) -> npt.NDArray[np.intp]:
    return np.array([grade(float(s), tokens) for s in GRID], dtype=np.intp)


class CalibrationState(msgspec.Struct):
    """Saved form of Calibration."""

    hits: list[list[float]]
    seen: list[list[float]]
    first: list[list[float]]
    later: list[list[float]]
    position_hits: list[float]
    position_seen: list[float]


class Calibration:
    """Acceptance by the bin of p (the table C multiplies up), and by position.

    `first` and `later` count how often each bin turned up at position 0 and at later observed
    positions, by mood and, for `later`, by the grade of the draft before them (mood-major): what
    a token not drafted yet is expected to look like. Good tokens follow good ones, so without
    mood and grade drafting would stop too early in an easy stretch.
    """

    def __init__(self) -> None:
        self._hits = [[0.0] * TABLE_BINS for _ in range(MOODS + 1)]
        self._seen = [[0.0] * TABLE_BINS for _ in range(MOODS + 1)]
        prior = [prior_acceptance(bin_centre(k)) for k in range(TABLE_BINS)]
        self._tables = [list(prior) for _ in range(MOODS + 1)]
        self._prior = prior
        self.first = [_spread(6, 24) for _ in range(MOODS)]
        self.later = [_spread(low, high) for _ in range(MOODS) for low, high in _SPREADS]
        self.position_hits = [0.0] * POSITIONS
        self.position_seen = [0.0] * POSITIONS

    def update(
        self, position: int, k: int, accepted: bool, before: float = 1.0, in_mood: int = 1
    ) -> None:
        """Learn from one observed position whose draft probability fell into bin k.

        `before` is the survival of the draft's tokens before it, `in_mood` the sequence's mood.
        """
        y = 1.0 if accepted else 0.0
        self._count(_ANY, k, y)
        self._count(in_mood, k, y)
        counts = self.first[in_mood]
        if position:
            counts = self.later[in_mood * GRADES + grade(before, position)]
        counts[k] += 1.0
        if counts[k] > _MEMORY:
            counts[:] = [c * 0.5 for c in counts]
        if position < POSITIONS:
            self.position_seen[position] += 1.0
            self.position_hits[position] += y

    def nexts(self, in_mood: int) -> Callable[[int], Floats]:
        """What `draft_floors` asks for, in a mood.

        A function of the number of tokens drafted: for each survival of GRID after them, a row
        with the probabilities of the next token's bins.
        """
        first = np.asarray(self.first[in_mood])
        later = np.asarray(self.later[in_mood * GRADES : (in_mood + 1) * GRADES])
        first = np.tile(first / first.sum(), (len(GRID), 1))
        later = later / later.sum(axis=1, keepdims=True)

        def rows(tokens: int) -> Floats:
            return np.asarray(later[_grid_grades(tokens)] if tokens else first, dtype=np.float64)

        return rows

    def table(self, in_mood: int) -> list[float]:
        """Acceptance by bin of p in a mood; the list is updated in place."""
        return self._tables[in_mood]

    def _count(self, m: int, k: int, y: float) -> None:
        seen, hits = self._seen[m], self._hits[m]
        if seen[k] >= _MEMORY:
            seen[k] *= 0.5
            hits[k] *= 0.5
        seen[k] += 1.0
        hits[k] += y
        self._refresh(m, k)

    def _refresh(self, m: int, k: int) -> None:
        """A bin's mean, drawn to that of all moods, and this one to the prior."""
        prior = self._prior[k] if m == _ANY else self._tables[_ANY][k]
        n = self._seen[m][k] + _PRIOR_WEIGHT
        self._tables[m][k] = clamp((self._hits[m][k] + _PRIOR_WEIGHT * prior) / n)

    def by_position(self) -> list[float]:
        """Conditional acceptance at positions 0.., as far as at least one was observed."""
        pairs = zip(self.position_hits, self.position_seen, strict=False)
        return [hits / seen for hits, seen in pairs if seen > 0.0]

    def state(self) -> CalibrationState:
        """For a profile."""
        return CalibrationState(
            [list(counts) for counts in self._hits],
            [list(counts) for counts in self._seen],
            [list(counts) for counts in self.first],
            [list(counts) for counts in self.later],
            list(self.position_hits),
            list(self.position_seen),
        )

    @classmethod
    def restore(cls, state: CalibrationState) -> Calibration:
        """The inverse of `state`; raises OptionError on contradictions."""
        tables = (*state.hits, *state.seen, *state.first, *state.later)
        places = (state.position_hits, state.position_seen)
        good = (
            len(state.first) == MOODS
            and len(state.hits) == len(state.seen) == MOODS + 1
            and len(state.later) == MOODS * GRADES
            and all(len(t) == TABLE_BINS for t in tables)
            and all(len(t) == POSITIONS for t in places)
            and all(0.0 <= n < 1e12 for t in (*tables, *places) for n in t)
            and all(
                h <= n
                for m in range(MOODS + 1)
                for h, n in zip(state.hits[m], state.seen[m], strict=False)
            )
            and all(h <= n for h, n in zip(*places, strict=False))
            and all(sum(counts) > 0.0 for counts in (*state.first, *state.later))
        )
        if not good:
            raise OptionError("the calibration table contradicts itself")
        out = cls()
        out._hits = [list(counts) for counts in state.hits]
        out._seen = [list(counts) for counts in state.seen]
        out.first = [list(counts) for counts in state.first]
        out.later = [list(counts) for counts in state.later]
        out.position_hits = list(state.position_hits)
        out.position_seen = list(state.position_seen)
        for m in (_ANY, *range(MOODS)):
            for k in range(TABLE_BINS):
                out._refresh(m, k)
        return out


def _spread(low: int, high: int) -> list[float]:
    """Two tokens' worth of an even spread over bins low..high - 1."""
    return [2.0 / (high - low) if low <= k < high else 0.0 for k in range(TABLE_BINS)]
