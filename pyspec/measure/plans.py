"""What measured costs and recorded rounds make of every plan: fixed lengths, break-even, `auto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspec.measure import simulate as simulator
from pyspec.measure.rounds import group
from pyspec.measure.simulate import Player, Recorded, Times, fixed_speed
from pyspec.policy.acceptance import Learned
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.stopping import survivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.measure.costs import MeasuredCosts
    from pyspec.measure.rounds import Chain

PLAIN = "do not speculate"


def fixed_plans(
    rows: Sequence[float], step: float, acceptance: Sequence[float]
) -> dict[str, float]:
    """Goodput over plain decoding of every fixed length: (1 + E accepted) / time."""
    out = {PLAIN: 1.0}
    expected = 1.0
    for k, survival in enumerate(survivals(acceptance), 1):
        expected += survival
        if k + 1 < len(rows):
            out[f"fixed:{k}"] = expected * rows[1] / (rows[k + 1] + k * step)
    return out


def break_even(rows: Sequence[float], step: float, kmax: int) -> float:
    """The least constant acceptance with which some fixed length pays; above 1 if none does."""

    def best(a: float) -> float:
        plans = fixed_plans(rows, step, [a] * kmax)
        return max(gain for name, gain in plans.items() if name != PLAIN)

    if best(1.0) <= 1.0:
        return 2.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (low, middle) if best(middle) > 1.0 else (middle, high)
    return high


def simulate(
    costs: MeasuredCosts, chains: Sequence[Chain], learned: Learned, *, companion: bool
) -> float:
    """Speed-up of the default policy on the recorded rounds, by the measured times; no Python in them."""
    texts = [Recorded(answer) for answer in group(chains)]
    if not texts:
        return 1.0
    curve = costs.curve()
    tables = (curve.target.table(min(costs.target)), curve.draft.table(), curve.companion.table())
    times = simulator.Costs(*(Times(dict(enumerate(table[1:], 1))) for table in tables))
    policy = GoodputPolicy(curve, Learned.restore(learned.state()), companion=companion)
    return Player(policy, times).play(texts).speed / fixed_speed(texts, times, 0)
