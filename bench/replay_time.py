"""Python's own time for the choice, in microseconds a round of one sequence.

    python bench/replay_time.py [--companion]

Plays synthetic rounds through a GoodputPolicy that always drafts and times plan, choose and
observe alone (CPU time), with everything they trigger (floors, tables, learning).
"""

from __future__ import annotations

import argparse
from time import thread_time as clock
from typing import TYPE_CHECKING

from replay import Place, load_costs
from replay_policies import Ours
from replay_synthetic import synthetic

from pyspec.measure.rounds import group
from pyspec.policy.base import LengthPolicy
from pyspec.policy.cost import CostCurve
from pyspec.policy.goodput import GoodputPolicy

if TYPE_CHECKING:
    from pyspec.policy.types import Draft, Outcome, Place, Plan

ENTRY = {"one_ms": 9.4, "shape": "Q4_K_M", "draft": 0.08, "companion": 0.06}
TINY = {"1": 1.0, "16": 4.6, "64": 15.0}


class Timed(LengthPolicy):
    """Wraps a policy and adds up the time in each call, in seconds."""

    def __init__(self, inner: LengthPolicy) -> None:
        super().__init__(inner.curve, inner.learned)
        self._inner = inner
        self.spent = {"plan": 0.0, "choose": 0.0, "observe": 0.0}
        self.slowest = 0.0
        self._round = 0.0

    def _add(self, name: str, start: float) -> None:
        took = clock() - start
        self.spent[name] += took
        self._round += took
        if name == "observe":
            self.slowest = max(self.slowest, self._round)
            self._round = 0.0

    def plan(self, places: list[Place]) -> Plan:  # type: ignore[override]
        """See LengthPolicy."""
        start = clock()
        out = self._inner.plan(places)
        self._add("plan", start)
        return out

    def choose(self, drafts: list[Draft]) -> list[int]:  # type: ignore[override]
        """See LengthPolicy."""
        start = clock()
        out = self._inner.choose(drafts)
        self._add("choose", start)
        return out

    def observe(self, outcome: Outcome) -> None:
        """See LengthPolicy."""
        start = clock()
        self._inner.observe(outcome)
        self._add("observe", start)

    def begin_answer(self) -> None:
        """See LengthPolicy."""
        self._inner.begin_answer()


def main() -> None:
    """Print microseconds a round."""
    parser = argparse.ArgumentParser(description="time of the choice")
    parser.add_argument("--companion", action="store_true", help="the companion scores every draft")
    args = parser.parse_args()
    costs = load_costs(ENTRY, TINY)
    curve = CostCurve.from_tables({0: costs.target[:65]}, costs.draft[:65], costs.companion[:65])
    policy = GoodputPolicy(curve, companion=args.companion, auto_draft=False, auto_companion=False)
    timed = Timed(policy)
    player = Ours("timed", costs, timed)
    rounds = tokens = 0
    for answer in group(synthetic(3, 6)):
        seat = Place(answer)
        while seat.t < answer.length:
            seat.t += player.play([seat]).accepted[0] + 1
            rounds += 1
        tokens += answer.length
    parts = ", ".join(f"{name} {1e6 * s / rounds:.1f}" for name, s in timed.spent.items())
    total = 1e6 * sum(timed.spent.values()) / rounds
    print(
        f"{rounds} rounds: {total:.1f} us a round ({parts}), slowest {1e6 * timed.slowest:.0f} us"
    )


if __name__ == "__main__":
    main()
