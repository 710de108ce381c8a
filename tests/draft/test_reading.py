"""Tests of pyspec.draft.goodput: what a companion reads before it can begin."""

import pytest

from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.types import Draft, Outcome, Place, SeqOutcome


def judged(**options):
    return GoodputPolicy(CostCurve.prior("Q4_K_M", 10.0, 0.1, 0.1), companion=True, **options)


def test_the_companions_reading_is_weighed_before_it_is_paid():
    policy = judged()
    policy.begin_answer()
    for _ in range(40):
        policy._scoring.used(0.5, 3.0)
    used = {}
    for unread, left in ((30, 60), (30_000, 60), (3000, 1 << 30)):
        policy.begin_sequence(0)
        place = Place(0, 16, 0, left, 50, companion_lag=unread)
        used[unread] = policy.plan([place]).use_companion
    assert used == {30: True, 30_000: False, 3000: False}


def test_the_companions_reading_is_no_evidence_against_it():
    """A round in which it read a prompt of 500 tokens says of its worth what any other says."""
    gains = {}
    for read in (0, 500):
        policy = judged(auto=False)
        policy.plan([Place(0, 16, 0, 200, 600, read)])
        agree = {"s": [0.9] * 2, "a": [1.0] * 2, "pc": [0.9] * 2, "agree": [True] * 2}
        policy.choose([Draft(0, 2, [0.8] * 2, **agree)])
        took = policy.curve.companion.time(2 + read)
        seen = [SeqOutcome(0, 2, 1)]
        policy.observe(Outcome(seen, 14.0, 3, 2.0, 2, took, 2 + read, companion_read=read))
        gains[read] = policy._scoring.gain(0.0)
    assert gains[0] == pytest.approx(gains[500], rel=0.05)


def test_what_the_companion_reads_is_what_the_longest_unread_text_has():
    policy = judged()
    for _ in range(40):
        policy._scoring.used(0.5, 3.0)
    places = [Place(0, 16, 0, 60, 50), Place(1, 16, 0, 60, 50, companion_lag=30_000)]
    assert not policy.plan(places).use_companion
