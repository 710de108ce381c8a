"""What is more than chance: intervals and tests of figures paired by question."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, erfc, sqrt

import msgspec
import numpy as np

Values = dict["int | str", float]
"""One figure per question, the mean over seeds."""


class Interval(msgspec.Struct):
    """Mean of paired differences, its 95 % bootstrap interval (percentiles), and the detectable difference.

    seen: the difference that this many pairs with this spread show four times in five at the 5 % level.
    """

    mean: float
    low: float
    high: float
    seen: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def changes(own: Values, base: Values) -> list[float]:
    """`own - base` over the questions that both have."""
    return [own[q] - base[q] for q in own if q in base]


def paired(own: Values, base: Values, resamples: int = 2000) -> Interval:
    """The interval of `own - base`; resamples questions, with a fixed seed."""
    values = np.array(changes(own, base))
    n = values.size
    if n == 0:
        return Interval(0.0, 0.0, 0.0, 0.0)
    draw = np.random.default_rng(0).integers(0, n, (resamples, n))
    low, high = np.percentile(values[draw].mean(axis=1), (2.5, 97.5))
    seen = (1.96 + 0.84) * values.std(ddof=1) / sqrt(n) if n > 1 else 0.0
    return Interval(float(values.mean()), float(low), float(high), float(seen))


def exact_pairs(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Two-sided exact p for paired yes-or-no answers: the binomial test on the pairs that differ (McNemar 1947)."""
    one, other = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    n, few = one + other, min(one, other)
    return min(1.0, 2.0 * sum(comb(n, k) for k in range(few + 1)) / 2.0**n) if n else 1.0


def signed_ranks(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test, normal approximation with ties; zeros left out."""
    values = np.array([d for d in differences if d != 0.0])
    if values.size < 6:  # fewer cannot reach 5 %
        return 1.0
    _, inverse, counts = np.unique(np.abs(values), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    spread = (ranks**2).sum() / 4.0
    z = (abs(ranks[values > 0].sum() - ranks.sum() / 2.0) - 0.5) / sqrt(spread)
    return min(1.0, erfc(max(0.0, z) / sqrt(2.0)))
