"""Tests of pyspec.draft.goodput: what is not thought over in each round."""

from itertools import pairwise

from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.stopping import draft_floors
from pyspec.draft.switch import UseSwitch
from pyspec.draft.types import Draft, Outcome, Place, SeqOutcome


class Scripted(UseSwitch):
    """Says what it is told to, and counts how often it is asked."""

    asked = 0
    says = False

    def on(self, *_, **__):
        Scripted.asked += 1
        return Scripted.says


def drafts(policy, depth):
    return any(policy.plan([Place(0, 16, 0, 400, depth)]).lengths)


def test_where_no_draft_pays_few_rounds_ask():
    """One in eight: to ask takes time beside a decode of a small model."""
    Scripted.asked, Scripted.says = 0, False
    policy = GoodputPolicy(CostCurve.prior(), switch=Scripted)
    assert not any(drafts(policy, 50 + n) for n in range(240))
    assert 0 < Scripted.asked <= 240 / 8


def test_a_draft_that_comes_to_pay_is_used_within_ten_rounds():
    for plain in range(20, 40):
        Scripted.says = False
        policy = GoodputPolicy(CostCurve.prior(), switch=Scripted)
        assert not any(drafts(policy, 50 + n) for n in range(plain))
        Scripted.says = True
        assert any(drafts(policy, 90 + n) for n in range(10))


def test_another_number_of_texts_is_thought_of_at_once():
    Scripted.says = False
    policy = GoodputPolicy(CostCurve.prior(), switch=Scripted)
    assert not drafts(policy, 50)
    Scripted.says = True
    assert not drafts(policy, 51)
    assert any(policy.plan([Place(seq, 16, 0, 400, 52) for seq in (0, 1)]).lengths)


def test_one_text_of_a_batch_learns_what_drafts_cost_before_all_pay():
    """The one with the least to read, while few rounds had drafts."""
    Scripted.says = True
    policy = GoodputPolicy(CostCurve.prior(), switch=Scripted)
    batch = [Place(seq, 16, lag, 400, 300) for seq, lag in enumerate((200, 30, 100))]
    for _ in range(8):
        assert [n > 0 for n in policy.plan(batch).lengths] == [False, True, False]
        policy.choose([Draft(1, 4, [0.99] * 4)])
        seen = [SeqOutcome(seq, *[4 * (seq == 1)] * 2) for seq in range(3)]
        policy.observe(Outcome(seen, 11.0, 7, 4.0, 4))
    assert all(policy.plan(batch).lengths)


def test_floors_follow_what_is_learned_in_one_round_of_a_hundred():
    """Or of two hundred, however long the process has run; at first every few rounds."""
    made: set[int] = set()

    def floors(*given):
        made.add(policy._round)
        return draft_floors(*given)

    policy = GoodputPolicy(CostCurve.prior(), auto=False)
    policy.floors = floors
    for _ in range(3000):
        policy.plan([Place(0, 16, 0, 10_000, 50)])
    rounds = sorted(made)
    assert all(100 <= b - a <= 200 for a, b in pairwise(rounds) if a > 1000)
    assert len([at for at in rounds if at < 10]) >= 4
