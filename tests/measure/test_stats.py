"""Figures from records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure.making import record, turn

from pyspec.measure.quality import Interval, exact_pairs, paired, signed_ranks
from pyspec.measure.records import TOTAL, geomean, hindsight, summarise

FIVE = [1, 2, 3, 4, 5]


def over(values: list[float], **how: int) -> Interval:
    """The interval of differences from zero."""
    return paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0), **how)


def test_speed_up_is_the_ratio_of_rates() -> None:
    """Half the time is twice the speed."""
    plain, fast = summarise([record("plain", 1, turn(FIVE, 2.0)), record("fast", 1, turn(FIVE))])
    assert plain.speeds[TOTAL].rate == 2.0
    assert fast.speeds["qa"].speed_up == fast.geomean == 2.0


def test_repeats_count_by_their_median() -> None:
    """One slow run of three does not move the figure."""
    runs = [record("plain", 1, turn(FIVE, s), repeat=i) for i, s in enumerate((1.0, 9.0, 1.0))]
    (summary,) = summarise(runs)
    assert summary.speeds[TOTAL].rate == 4.0
    assert summary.questions == 1


def test_a_category_is_the_sum_of_its_questions_and_the_spread_is_of_each() -> None:
    """Times add up; quartiles are of single speed-ups."""
    plain = [record("plain", q, turn(FIVE, 1.0)) for q in (1, 2)]
    fast = [record("fast", 1, turn(FIVE, 0.5)), record("fast", 2, turn(FIVE, 1.0))]
    speed = summarise([*plain, *fast])[1].speeds["qa"]
    assert speed.speed_up == pytest.approx(2.0 / 1.5)
    assert (speed.low, speed.mid, speed.high) == (1.25, 1.5, 1.75)


def test_failed_questions_are_left_out_on_both_sides() -> None:
    """Speed-ups are over questions that both answered."""
    records = [
        record("plain", 1, turn(FIVE, 1.0)),
        record("plain", 2, turn(FIVE, 7.0)),
        record("fast", 1, turn(FIVE, 0.5)),
        record("fast", 2, error="no"),
    ]
    assert summarise(records)[1].speeds[TOTAL].speed_up == 2.0


def test_counts_come_from_the_answers_statistics() -> None:
    """Acceptance over verified, tokens over rounds, relaxed over tokens."""
    block = {"rounds": 2, "verified": 4, "accepted": 3, "relaxed": 1,
             "timings": {"total_ms": 50.0, "other_ms": 1.0}}  # fmt: skip
    (summary,) = summarise([record("margin", 1, turn(FIVE, speculation=block))])
    assert (summary.acceptance, summary.mean_length, summary.relaxed) == (0.75, 2.5, 0.2)
    assert summary.other == 0.02


def test_hindsight_takes_the_best_length_of_each_category() -> None:
    """Plain is length 0, and there is no total: no single way reached it."""
    records = []
    for who, code, prose in (("plain", 1.0, 1.0), ("fixed:2+strict", 0.5, 2.0),
                             ("fixed:8+strict", 0.25, 4.0)):  # fmt: skip
        records.append(record(who, 1, turn(FIVE, code), category="code", exact=True))
        records.append(record(who, 2, turn(FIVE, prose), category="prose", exact=True))
    best = hindsight(summarise(records))
    assert best is not None
    assert {name: speed.speed_up for name, speed in best.speeds.items()} == {"code": 4, "prose": 1}
    assert best.geomean == pytest.approx(2.0)


def test_geometric_mean_of_nothing_is_zero() -> None:
    """And of something that stands still."""
    assert geomean([]) == geomean([1.0, 0.0]) == 0.0
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_interval_holds_its_mean_and_stays_inside_the_data(values: list[float]) -> None:
    """Resampled means never leave the range of what was seen."""
    found = over(values, resamples=50)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_pairs_are_by_question() -> None:
    """A question that only one side has is left out; equal differences leave no width."""
    assert paired({1: 2.0, 2: 3.0, 9: 100.0}, {1: 1.0, 2: 2.0}) == Interval(1.0, 1.0, 1.0, 0.0)


def test_the_same_differences_give_the_same_interval() -> None:
    """A page can be made again."""
    assert over([0.1, -0.4, 0.9, 0.0]) == over([0.1, -0.4, 0.9, 0.0])


def test_paired_yes_or_no_answers_by_the_binomial() -> None:
    """By hand: six pairs that differ, all one way: 2 / 2**6; pairs that agree do not count."""
    assert exact_pairs([(True, False)] * 6 + [(True, True)] * 50) == 2 / 64
    assert exact_pairs([(True, False), (False, True)]) == 1.0
    assert exact_pairs([(True, True)]) == 1.0


def test_signed_ranks_of_a_textbook_sample() -> None:
    """Ten differences, W- = 8, so z = (27.5 - 8 - 0.5) / sqrt(96.25) and p = 0.0528."""
    differences = [-1, 2, 3, 4, 5, 6, -7, 8, 9, 10]
    assert signed_ranks(differences) == pytest.approx(0.0528, abs=1e-4)
    assert signed_ranks([0.0] * 20 + [1.0]) == 1.0


def test_ties_share_their_ranks() -> None:
    """Eight equal differences, one against: each has rank 4.5, W- = 4.5, z = 13 / sqrt(40.5)."""
    assert signed_ranks([1.0] * 7 + [-1.0]) == pytest.approx(0.0411, abs=1e-4)


def test_a_larger_sample_shows_a_smaller_difference() -> None:
    """Of 100 pairs with a spread of 1: 2.8 / 10."""
    spread = [-1.0, 1.0] * 50
    assert over(spread).seen == pytest.approx(0.2814, abs=1e-3)
    assert over(spread * 4).seen == pytest.approx(over(spread).seen / 2, rel=0.01)
    assert over([1.0]).seen == 0.0
