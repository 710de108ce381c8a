"""Tests of pyspec.draft.simple."""

import pytest

from pyspec.draft.simple import Aside, FixedPolicy
from pyspec.draft.types import Outcome, SeqOutcome


def aside_of(*rounds):
    aside = Aside()
    for ms in rounds:
        aside.add(ms)
    return aside.ms


@pytest.mark.parametrize(("rounds", "believed"), [((), 0.0), ((3.0,), 0.0), ((3.0, 2.0), 0.0)])
def test_first_rounds_are_not_believed(rounds, believed):
    assert aside_of(*rounds) == believed


def test_what_works_beside_is_left_out():
    """Of a few rounds the shortest is the truth, since others only lengthen them."""
    assert aside_of(3.0, 2.0, 0.5, 4.0, 0.7) == 0.5


def test_it_grows_when_all_rounds_do():
    assert aside_of(0.1, 0.1, 0.1, *[0.6] * 9) == 0.6


def test_a_mean_of_several_rounds_is_believed_at_once():
    aside = Aside()
    aside.add(0.4, rounds=8)
    assert aside.ms == 0.4


def test_each_millisecond_is_counted_once():
    policy = FixedPolicy(2)
    for _ in range(3):
        policy.observe(Outcome([SeqOutcome(0, 2, 1)], 20.0, 3, 4.0, 2, 3.0, 2, t_round=30.0))
    for _ in range(8):
        policy.watch(1, 10.0, 11.0, 50)
    told = policy.stats()
    parts = [told[f"ms_{part}"] for part in ("draft", "companion", "target", "other")]
    assert parts == pytest.approx([12.0, 9.0, 140.0, 17.0])
    rounds = [told[name] for name in ("rounds", "rounds_plain", "rounds_drafted")]
    assert [*rounds, told["rounds_with_companion"]] == [11, 8, 3, 3]
    assert told["rounds_by_length"] == {0: 8, 2: 3}
