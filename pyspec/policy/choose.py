"""The choice itself, as pure functions. Times in ms, goodput and price in tokens per ms.

A round that verifies g drafted tokens yields 1 + E(g) tokens, E(g) = sum of the first g survival
products, because the target's own token comes with every round. Verification time is stepped
and not monotone in g, so every length is evaluated.

Two objectives. `price` None maximises this round's goodput (1 + E) / T, sunk draft and companion
time in T. With a price the choice maximises 1 + E - price * T (Dinkelbach's form): best for the
whole answer if price is the goodput of the rounds to come, since a millisecond saved now is
spent there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOG_MIN = 4.605170185988091  # -log 0.01: the survival GRID goes from 1 to 0.01, equal in log
Floats = npt.NDArray[np.float64]
GRID: Floats = np.exp(np.linspace(0.0, -_LOG_MIN, 24))
_GRID_LIST = [float(s) for s in GRID]


def survivals(acceptance: Sequence[float]) -> list[float]:
    """Running products of conditional acceptance: P(position i and all before it accepted)."""
    out, product = [], 1.0
    for a in acceptance:
        product *= a
        out.append(product)
    return out


def best_length(
    survival: Sequence[float],
    verify: Sequence[float],
    sunk: float = 0.0,
    price: float | None = None,
) -> int:
    """The g in 0..len(survival) with the best objective; the shortest among equals.

    `verify[g]` is the target's time with g drafted tokens; `sunk` ms were spent before.
    """
    tokens, best = 1.0, 0
    if price is None:
        top = 1.0 / (verify[0] + sunk)
        for g in range(1, len(survival) + 1):
            tokens += survival[g - 1]
            value = tokens / (verify[g] + sunk)
            if value > top:
                top, best = value, g
        return best
    top = 1.0 - price * verify[0]
    for g in range(1, len(survival) + 1):
        tokens += survival[g - 1]
        value = tokens - price * verify[g]
        if value > top:
            top, best = value, g
    return best


def allocate(
    survival: Sequence[Sequence[float]],
    target: Sequence[float],
    sunk: float = 0.0,
    price: float | None = None,
) -> list[int]:
    """How many drafted tokens each sequence gets, over all totals N that fit the curve.

    `target[n]` is the time of n rows; each sequence takes one row for its own last token. Survival
    never grows along a sequence, so taking the N largest always takes prefixes.
    """
    n_seq = len(survival)
    order = sorted((-s, i, k) for i, chain in enumerate(survival) for k, s in enumerate(chain))
    tokens, best, room = float(n_seq), 0, len(target) - 1 - n_seq
    base = target[n_seq]
    top = tokens / (base + sunk) if price is None else tokens - price * base
    for taken, (minus_s, _, _) in enumerate(order[: max(room, 0)], 1):
        tokens -= minus_s
        time = target[n_seq + taken]
        value = tokens / (time + sunk) if price is None else tokens - price * time
        if value > top:
            top, best = value, taken
    lengths = [0] * n_seq
    for _, i, _ in order[:best]:
        lengths[i] += 1
    return lengths


def draft_floors(
    verify: Sequence[float],
    step: float,
    price: float,
    nexts: Callable[[int], Floats],
    acceptance: Sequence[float],
) -> tuple[list[float], float]:
    """Survival floors for drafting, by optimal stopping, and what drafting is expected to gain.

    `verify[g]` for g = 0..max_draft; `step` is one more drafted token's time. `nexts(i)` has a row
    for each survival of GRID after i tokens: the probabilities with which the next token's
    acceptance takes each of the values `acceptance`. Returns (floors, gain): after token i draft
    on only if survival >= floors[i]; gain is in tokens a round over not drafting.

    Backward over lengths i, with survival s on a grid. Stopping at i keeps all i tokens or cuts
    the last ones again; the last one's survival is s, those before are taken as 1, which makes
    the value of stopping a lower bound that is exact for a cut of none or one.
    Going on costs `step` and brings s * a now and the value of what follows.
    """
    n = len(verify) - 1
    if n == 0:
        return [], 0.0
    cost = price * np.asarray(verify, dtype=np.float64)
    stop = _stop_values(cost)
    ahead = _Lookahead(acceptance)
    value = stop[n]
    margins = np.empty((n - 1, len(GRID)))
    for i in range(n - 1, 0, -1):
        on = ahead.expect(value, nexts(i)) - price * step
        np.subtract(on, stop[i], out=margins[i - 1])
        value = np.maximum(stop[i], on)
    first = ahead.expect(value, nexts(0))
    floors = [_threshold(row) for row in margins.tolist()]
    return [*floors, 1.1], float(first[0] - price * step + cost[0])


class _Lookahead:
    """Expected value after one more token, from each survival on the grid."""

    def __init__(self, acceptance: Sequence[float]) -> None:
        self._next = np.outer(GRID, np.asarray(acceptance, dtype=np.float64))
        place = -np.log(self._next) * ((len(GRID) - 1) / _LOG_MIN)
        self._low = np.clip(place.astype(np.intp), 0, len(GRID) - 2)
        self._part = np.clip(place - self._low, 0.0, 1.0)

    def expect(self, value: Floats, weights: Floats) -> Floats:
        """Expected value for each survival of GRID; `value` is that of having one token more."""
        rise = np.append(value[1:] - value[:-1], 0.0)
        gain = rise[self._low]
        gain *= self._part
        gain += value[self._low]
        gain += self._next
        gain *= weights
        return np.asarray(gain.sum(axis=1), dtype=np.float64)


def _stop_values(cost: Floats) -> Floats:
    """Value of stopping after i tokens, (i, survival)."""
    n = len(cost)
    places = np.arange(n)
    # Cutting back to c < i loses the last token's s and at most 1 for each of the others.
    best = np.maximum.accumulate(places - cost)
    deeper = np.append(-np.inf, best[:-1] - (places[1:] - 1))
    out: Floats = np.maximum(-cost[:, None], deeper[:, None] - GRID[None, :])
    return out


def _threshold(margin: Sequence[float]) -> float:
    """The lowest survival of GRID from which on drafting pays; 1.1 where it never does."""
    good = next((k for k, m in enumerate(margin) if m < 0.0), len(margin))
    if good == 0:
        return 1.1
    if good == len(margin):
        return 0.0
    low, high = _GRID_LIST[good], _GRID_LIST[good - 1]
    return low + (high - low) * -margin[good] / (margin[good - 1] - margin[good])


def expected_goodput(
    acceptance: float, g: int, verify: Sequence[float], step: float, scoring: float = 0.0
) -> float:
    """Tokens per ms of always drafting g tokens that are each accepted with one probability."""
    tokens = sum(acceptance**i for i in range(g + 1))
    return tokens / (verify[g] + g * step + (scoring if g else 0.0))


def best_fixed(acceptance: float, verify: Sequence[float], step: float) -> int:
    """The best fixed length, 0 included, for one constant acceptance."""
    lengths = range(len(verify))
    return max(lengths, key=lambda g: (expected_goodput(acceptance, g, verify, step), -g))


def break_even(verify: Sequence[float], step: float) -> float:
    """The constant acceptance from which on some draft length beats none; inf where none does."""
    if best_fixed(1.0, verify, step) == 0:
        return float("inf")
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        if best_fixed(middle, verify, step) == 0:
            low = middle
        else:
            high = middle
    return high
