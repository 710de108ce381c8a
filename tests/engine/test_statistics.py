"""What a result says of itself: how much faster than without drafts."""

from __future__ import annotations

import pytest

from pyspec.engine.statistics import (
    AnswerStatistics,
    PlainSpeed,
    Tally,
    Timings,
    plain_decode_ms,
    plain_speed,
)
from pyspec.policy.cost import CostCurve
from pyspec.policy.simple import FixedPolicy
from pyspec.policy.types import Outcome, SeqOutcome

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
    found: float | None = AnswerStatistics(Tally(), timings, 20, 0).report(policy)["times_plain"]
    return found


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
    said = AnswerStatistics(Tally(), timings, 20, 0).report(policy)["times_plain"]
    assert said == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("tokens", [1, 4, 15])
def test_short_answers_are_held_against_the_curve_too(tokens: int) -> None:
    """A machine whose curve is known needs no long answer."""
    times = [0.0, *(ROW_MS + n for n in range(64))]
    policy = FixedPolicy(3, CostCurve.from_tables({0: times}, times, times))
    answer = AnswerStatistics(
        Tally(), Timings(5.0, 0.0, 0.0, 0.0, 6.0, 5.0 + 5.0 * tokens, tokens), 20, 0
    )
    assert answer.report(policy)["times_plain"] == pytest.approx(2.0)


def watched(rounds: int) -> FixedPolicy:
    """A policy on an unmeasured curve that saw so many rounds without drafts."""
    policy = FixedPolicy(3, CostCurve.prior())
    for _ in range(rounds):
        policy.watch(1, ROW_MS, ROW_MS + 2.0, 30)
    return policy


def test_rounds_without_drafts_say_what_plain_decoding_takes() -> None:
    """Where the curve is not measured, those of the answer itself are taken, Python's time in them."""
    answer = AnswerStatistics(Tally(), Timings(5.0, 0.0, 0.0, 100.0, 6.0, 105.0, 15), 20, 0)
    assert plain_speed(answer, watched(3)) == PlainSpeed(ROW_MS + 2.0, "rounds")


def test_nothing_is_claimed_from_nothing() -> None:
    """An unmeasured curve and two rounds are no ground for a factor."""
    answer = AnswerStatistics(Tally(), Timings(5.0, 0.0, 0.0, 100.0, 6.0, 105.0, 15), 20, 0)
    assert plain_speed(answer, watched(2)) is None
    assert answer.report(watched(2))["times_plain"] is None


@pytest.mark.parametrize("slow", [0.5, 1.0, 3.0])
def test_a_batch_is_held_against_a_decode_of_as_many_rows(slow: float) -> None:
    """Of two texts, one of them with a draft of two, on a machine that is slower than the curve or faster."""
    times = [0.0, *(ROW_MS + n for n in range(64))]
    curve = CostCurve.from_tables({0: times}, times, times)
    found = plain_decode_ms(curve.target, 2, [100], {4: 1}, slow * times[4])
    assert found == pytest.approx(slow * times[2])


def test_one_ratio_is_the_factor_of_answers_and_batches() -> None:
    """Of several answers it is that of all their time, and of nothing known there is none."""
    one, other = Tally(), Tally()
    assert one.times_plain is None
    one.against(30.0, 10.0)
    other.against(10.0, 10.0)
    one.join(other)
    assert one.times_plain == 2.0
