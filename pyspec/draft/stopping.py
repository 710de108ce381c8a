"""What a draft is expected to bring, when to stop drafting, and how much to verify. Times in ms, prices in tokens per ms.

A round that verifies g drafted tokens yields 1 + E(g) tokens: the target's own, which comes with every round, and E(g), the sum
of the first g survivals. Verification time rises in steps and can fall as g grows, so every length is evaluated.

The goal is to maximise 1 + E - price * T, Dinkelbach's form of (1 + E) / T. That is best for the whole answer if the price is the
goodput of the rounds to come, where a saved millisecond will be spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np

from pyspec.draft.acceptance import Acceptance, Features, companion_features, draft_bins
from pyspec.draft.types import LOOKUP, Draft, Floats, SeqOutcome

_LOG_MIN = 4.605170185988091  # -log 0.01, the lowest survival of GRID; its steps are equal in log
GRID: Floats = np.exp(np.linspace(0.0, -_LOG_MIN, 24))
_GRID_LIST = [float(s) for s in GRID]


def survivals(acceptance: Sequence[float]) -> list[float]:
    """The chance that position i and all before it are accepted: running products of conditional acceptance."""
    return list(accumulate(acceptance, mul))


def best_length(survival: Sequence[float], verify: Sequence[float], price: float) -> int:
    """The g in 0..len(survival) with the most tokens after cost; the shortest among equals.

    `verify[g]` is the target's time with g drafted tokens.
    """
    tokens, best = 1.0, 0
    top = 1.0 - price * verify[0]
    for g, s in enumerate(survival, 1):
        tokens += s
        worth = tokens - price * verify[g]
        if worth > top:
            top, best = worth, g
    return best


def allocate(
    survival: Sequence[Sequence[float]], target: Sequence[float], price: float
) -> list[int]:
    """How many drafted tokens of each sequence to verify.

    `target[n]` is the time of n rows; each sequence takes one row for its own last token. Every total is tried, filled with the
    largest survivals of all sequences. Survival never grows along a sequence, so these are always prefixes.
    """
    n_seq = len(survival)
    order = sorted((-s, i, k) for i, chain in enumerate(survival) for k, s in enumerate(chain))
    tokens, best = float(n_seq), 0
    top = tokens - price * target[n_seq]
    for taken, (minus_s, _, _) in enumerate(order, 1):
        tokens -= minus_s
        worth = tokens - price * target[n_seq + taken]
        if worth > top:
            top, best = worth, taken
    lengths = [0] * n_seq
    for _, i, _ in order[:best]:
        lengths[i] += 1
    return lengths


def draft_floors(
    verify: Sequence[float],
    step: float,
    price: float,
    nexts: tuple[Floats, Floats],
    acceptance: Sequence[float],
) -> tuple[list[float], float]:
    """Survival floors for drafting, by optimal stopping, and the expected gain of drafting.

    The recursion goes backward over lengths i, with survival s on a grid. Stopping at i keeps all i tokens or cuts some off the
    end; the last one's survival is s, and those before it are taken as 1. The value of stopping is thus a lower bound, which is
    exact for a cut of none or one. Going on costs `step`; it brings s * a now, and the value of what follows.

    Args:
        verify: the target's times with 0.. drafted tokens; their number sets the longest draft.
        step: the time of one more drafted token.
        price: tokens per ms.
        nexts: the probability of each value of `acceptance`, for a first and for a later token.
        acceptance: the values that a token's acceptance can take.

    Returns:
        The floors (after token i, drafting goes on only where survival >= floors[i]), and the tokens per round that this gains
        over not drafting.
    """
    n = len(verify) - 1
    cost = price * np.asarray(verify, dtype=np.float64)
    stop, price_of_step = _stop_values(cost), price * step
    first, later = _expectations(np.asarray(acceptance, dtype=np.float64), nexts)
    value = stop[n]
    margin = np.empty((n - 1, len(GRID)))
    for i in range(n - 1, 0, -1):
        on = later[0] @ value + later[1] - price_of_step
        margin[i - 1] = on - stop[i]
        value = np.maximum(stop[i], on)
    gain = float(first[0][0] @ value + first[1][0] - price_of_step + cost[0])
    return [*map(_threshold, margin.tolist()), 1.1], gain


def _expectations(acceptance: Floats, nexts: tuple[Floats, Floats]) -> list[tuple[Floats, Floats]]:
    """(W, c) for a first and a later token: at each survival of GRID it brings c, and W @ value is the value of what follows."""
    size = len(GRID)
    after = np.outer(GRID, acceptance)
    place = np.clip(-np.log(after) * ((size - 1) / _LOG_MIN), 0.0, size - 1.000001)
    low = place.astype(np.intp)
    part = place - low
    to = (low + size * np.arange(size)[:, None]).ravel()
    out = []
    for weights in nexts:
        stays = np.bincount(to, (weights * (1.0 - part)).ravel(), size * size)
        moves = np.bincount(to + 1, (weights * part).ravel(), size * size)
        leaves: Floats = np.asarray(stays + moves, dtype=np.float64).reshape(size, size)
        out.append((leaves, after @ weights))
    return out


def _stop_values(cost: Floats) -> Floats:
    """Value of stopping after i tokens at each survival of GRID, as (i, survival)."""
    places = np.arange(len(cost))
    # Cutting back to c < i loses the last token's s, and at most 1 for each of the others.
    best = np.maximum.accumulate(places - cost)
    deeper = np.append(-np.inf, best[:-1] - (places[1:] - 1))
    out: Floats = np.maximum(-cost[:, None], deeper[:, None] - GRID[None, :])
    return out


def _threshold(margin: Sequence[float]) -> float:
    """The lowest survival at which drafting on still pays; 1.1 if it never does."""
    good = next((k for k, m in enumerate(margin) if m < 0.0), len(margin))
    if good == 0:
        return 1.1
    if good == len(margin):
        return 0.0
    low, high = _GRID_LIST[good], _GRID_LIST[good - 1]
    return low + (high - low) * -margin[good] / (margin[good - 1] - margin[good])


class Forecast(NamedTuple):
    """One draft's chances by position, with and without the companion's view, and survival by all that is known.

    bins: table bins of a model's tokens. full: the companion's features, None where it did not run.
    """

    draft: Draft
    bins: list[int]
    full: list[Features] | None
    without: list[float]
    with_: list[float]
    survival: list[float]

    def brought(self, seq: SeqOutcome) -> float:
        """Tokens that it brought: the mean of those expected, which scatter less, and those counted, which are unbiased."""
        return 0.5 * (sum(self.survival[: seq.n_verified]) + seq.n_accepted)


def forecast(learned: Acceptance, draft: Draft) -> Forecast:
    """A draft's chances, by what was learned."""
    if draft.source == LOOKUP:
        chance = learned.lookup.predict(draft.match_length, draft.n)
        return Forecast(draft, [], None, chance, [], survivals(chance))
    bins, table = draft_bins(draft), learned.calibration.table
    without = [table[k] for k in bins]
    full = companion_features(draft, len(bins))
    if not full:
        return Forecast(draft, bins, None, without, [], survivals(without))
    with_ = [learned.companion.predict(x) for x in full]
    return Forecast(draft, bins, full, without, with_, survivals(with_))


def learn(learned: Acceptance, expected: Forecast, seq: SeqOutcome) -> None:
    """Learn from a verified draft, up to its first refusal: nothing after that is observed."""
    draft, hits = expected.draft, seq.hits(expected.draft.n)
    if draft.source == LOOKUP:
        learned.lookup.update(draft.match_length, hits)
        return
    for i, (k, hit) in enumerate(zip(expected.bins, hits, strict=False)):
        learned.calibration.update(i, k, hit)
        if expected.full is not None:
            learned.companion.learn(expected.full[i], hit - expected.with_[i])
