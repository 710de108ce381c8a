"""Tests of pyspec.policy.simple."""

from __future__ import annotations

import pytest

from pyspec.policy.simple import Aside


def aside_of(*rounds: float) -> float:
    """What is believed after these rounds."""
    aside = Aside()
    for ms in rounds:
        aside.add(ms)
    return aside.ms


@pytest.mark.parametrize(("rounds", "believed"), [((), 0.0), ((3.0,), 0.0), ((3.0, 2.0), 0.0)])
def test_first_rounds_are_not_believed(rounds: tuple[float, ...], believed: float) -> None:
    """They run in cold caches."""
    assert aside_of(*rounds) == believed


def test_what_works_beside_is_left_out() -> None:
    """Of a few rounds the shortest is the truth, since others only lengthen them."""
    assert aside_of(3.0, 2.0, 0.5, 4.0, 0.7) == 0.5


def test_it_grows_when_all_rounds_do() -> None:
    """Nine rounds later the short one is forgotten."""
    assert aside_of(0.1, 0.1, 0.1, *[0.6] * 9) == 0.6


def test_a_mean_of_several_rounds_is_believed_at_once() -> None:
    """Plain rounds are told eight at a time."""
    aside = Aside()
    aside.add(0.4, rounds=8)
    assert aside.ms == 0.4
