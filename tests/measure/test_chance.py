"""Intervals and tests of figures that are paired by question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure.chance import Interval, exact_pairs, paired, signed_ranks


def over(values, **how):
    return paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0), **how)


def test_pairs_are_by_question_and_give_the_same_interval_again():
    assert paired({1: 2.0, 2: 3.0, 9: 100.0}, {1: 1.0, 2: 2.0}) == Interval(1.0, 1.0, 1.0, 0.0)
    assert over([0.1, -0.4, 0.9, 0.0]) == over([0.1, -0.4, 0.9, 0.0])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_interval_holds_its_mean_and_stays_inside_the_data(values):
    found = over(values, resamples=50)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_paired_yes_or_no_answers_by_the_binomial():
    """By hand: six pairs that differ, all one way: 2 / 2**6; pairs that agree do not count."""
    assert exact_pairs([(True, False)] * 6 + [(True, True)] * 50) == 2 / 64
    assert exact_pairs([(True, False), (False, True)]) == 1.0
    assert exact_pairs([(True, True)]) == 1.0


@pytest.mark.parametrize(("differences", "p"), [
    ([-1, 2, 3, 4, 5, 6, -7, 8, 9, 10], 0.0528), # W- = 8, so z = (27.5 - 8 - 0.5) / sqrt(96.25)
    ([1.0] * 7 + [-1.0], 0.0411), # ties share their ranks: each has 4.5, W- = 4.5, z = 13 / sqrt(40.5)
    ([0.0] * 20 + [1.0], 1.0),
])  # fmt: skip
def test_signed_ranks_of_textbook_samples(differences, p):
    assert signed_ranks(differences) == pytest.approx(p, abs=1e-4)


def test_a_larger_sample_shows_a_smaller_difference():
    """Of 100 pairs with a spread of 1: 2.8 / 10."""
    spread = [-1.0, 1.0] * 50
    assert over(spread).seen == pytest.approx(0.2814, abs=1e-3)
    assert over(spread * 4).seen == pytest.approx(over(spread).seen / 2, rel=0.01)
    assert over([1.0]).seen == 0.0
