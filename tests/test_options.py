"""What a result says of itself: how much faster than without drafts."""

from __future__ import annotations

import pytest

from pyspec.engine.session import Report
from pyspec.options import times_plain
from pyspec.policy.cost import CostCurve
from pyspec.policy.simple import FixedPolicy
from pyspec.policy.types import Outcome, SeqOutcome
from pyspec.tokens import Tally, Timings

ROW_MS, FOUR_MS, ROUNDS = 10.0, 20.0, 10


def factor(slow: float) -> float | None:
    """Of ten rounds of four tokens, on a machine `slow` times as slow as the curve says."""
    times = [0.0, ROW_MS, 14.0, 17.0, FOUR_MS, *(FOUR_MS + n for n in range(1, 61))]
    curve = CostCurve.from_tables({0: times}, times, times)
    policy = FixedPolicy(3, curve)
    took = slow * FOUR_MS
    for _ in range(ROUNDS):
        policy.counts.add(Outcome([SeqOutcome(0, 3, 3)], took, 4, t_round=took))
    timings = Timings(5.0, 0.0, 0.0, ROUNDS * took, 6.0, 5.0 + ROUNDS * took, 4 * ROUNDS)
    return times_plain(Report(Tally(), timings, 20, 0), policy)


@pytest.mark.parametrize("slow", [0.5, 1.0, 3.0])
def test_a_slow_machine_is_slow_for_plain_decoding_too(slow: float) -> None:
    """40 tokens in the time of 20 rows are twice as fast, whatever else the machine did meanwhile."""
    assert factor(slow) == pytest.approx(2.0)


def test_plain_decoding_takes_time_beside_decodes_too() -> None:
    """What rounds without drafts took beside their decode is taken into account for all of the tokens."""
    policy = FixedPolicy(0, CostCurve.prior("Q8_0", ROW_MS))
    for _ in range(32):
        policy.watch(1, ROW_MS, ROW_MS + 1.0, 30)
    timings = Timings(5.0, 0.0, 0.0, 320.0, 6.0, 5.0 + 32 * 11.0, 32)
    said = times_plain(Report(Tally(), timings, 20, 0), policy)
    assert said == pytest.approx(1.0, abs=0.01)


def test_answers_too_short_say_nothing() -> None:
    """Sixteen tokens are the fewest."""
    policy = FixedPolicy(3, CostCurve.prior())
    timings = Timings(5.0, 0.0, 0.0, 100.0, 6.0, 105.0, 15)
    assert times_plain(Report(Tally(), timings, 20, 0), policy) is None
