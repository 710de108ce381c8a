"""Tests of pyspec.draft.goodput, played by the simulator."""

import math
import random
from pathlib import Path

import pytest
from grid import CURVES
from hypothesis import given, settings
from hypothesis import strategies as st
from measure.simulate import (
    Costs,
    Player,
    Times,
    fixed_speed,
    fresh_curve,
    known_curve,
    load_rounds,
    planted,
)

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import CostCurve, expand
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.types import LOOKUP, Draft, Outcome, Place, SeqOutcome

ROUNDS = Path(__file__).parents[2] / "bench" / "rounds"
GPU = {1: 1.0, 16: 1.15, 64: 1.6}
TINY = {1: 1.0, 16: 4.6, 64: 15.0}


def costs(points, draft):
    side = Times(TINY, 10.0 * draft)
    return Costs(Times(points, 10.0), side, side)


def texts(acceptance, n=6, seed=1, prompt=100):
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    return [planted(rng, acceptance, 150, prompt) for _ in range(n)]


def fresh(truth, draft, *, card=False, **options):
    return GoodputPolicy(fresh_curve(truth, (draft, draft), 1, card), **options)


Q4_K_M, BF16 = (CURVES[name].points for name in ("Q4_K_M", "BF16"))


@pytest.mark.parametrize(("points", "acceptance", "draft"), [
    (Q4_K_M, 0.7, 0.1),
    (CURVES["Q4_1"].points, 0.3, 0.4),
    (CURVES["Q4_1"].points, 0.5, 0.1),
    (BF16, 0.95, 0.05),
    (GPU, 0.95, 0.1),
])  # fmt: skip
def test_auto_is_near_the_best_fixed_length_and_plain(points, acceptance, draft):
    truth, played = costs(points, draft), texts(acceptance)
    speed = Player(fresh(truth, draft), truth).play(played).speed
    fixed = [fixed_speed(played, truth, k) for k in range(17)]
    assert speed >= 0.93 * max(fixed)
    assert speed >= 0.95 * fixed[0]


@pytest.mark.parametrize("card", [False, True])
def test_long_prompts_are_not_read_for_short_answers_however_good_the_draft(card):
    """Reading 750 tokens takes 33 to 65 tokens' time, ten times what is assumed of a card: two of twelve answers tell."""
    for draft in (0.2, 0.4):
        truth, rng = costs(Q4_K_M, draft), random.Random(1)  # noqa: S311 - reproducible, not secret
        player = Player(fresh(truth, draft, card=card), truth)
        drafted = []
        for _ in range(12):
            before = len(player.drafted)
            player.play([planted(rng, 0.95, 64, 750)])
            drafted.append(any(player.drafted[before:]))
        assert not any(drafted[2:])


STEPS = {1: 1.0, 2: 1.8, 3: 2.5, 4: 1.6, 5: 2.6, 7: 3.9, 8: 2.6, 11: 4.9, 12: 3.6, 15: 6.0, 16: 4.7}


@pytest.mark.parametrize("acceptance", [0.7, 0.9])
def test_a_staircase_is_found(acceptance):
    """Four rows cost less than two, and nothing that is assumed says so: as fast as the best length by hindsight."""
    truth, played = costs(STEPS, 0.1), texts(acceptance)
    speed = Player(fresh(truth, 0.1), truth).play(played).speed
    assert speed >= 0.97 * max(fixed_speed(played, truth, k) for k in range(17))


def test_a_drafter_that_is_never_right_is_switched_off():
    policy, drafted = fresh(costs(Q4_K_M, 0.1), 0.1), []
    for _ in range(400):
        n = min(policy.plan([Place(0, 16, left=400)]).lengths[0], 2)
        g = policy.choose([Draft(0, n, [0.9] * n)])[0]
        seq = SeqOutcome(0, g, 0, next_match=None if g or not n else False)
        policy.observe(Outcome([seq], 10.0 + g, 1 + g, 1.0 * n, n))
        drafted.append(n > 0)
    assert sum(drafted[60:]) < 30


def test_the_companion_is_dropped_where_it_knows_nothing_new():
    policy = fresh(costs(Q4_K_M, 0.1), 0.1, companion=True)
    used = 0
    for k in range(600):
        plan = policy.plan([Place(0, 16, left=600)])
        n = min(plan.lengths[0], 3)
        draft = Draft(0, n, [0.6] * n)
        rows = n if plan.use_companion else 0
        if rows:
            used += 1
            draft.s, draft.a, draft.pc, draft.agree = [1.0] * n, [1.0] * n, [0.6] * n, [True] * n
        g = policy.choose([draft])[0]
        seen = [SeqOutcome(0, g, min(g, k % 4))]
        policy.observe(Outcome(seen, 10.0 + 3.0 * g, 1 + g, 1.0 * n, n, 3.0 * rows, rows))
    assert used < 60


def test_rounds_without_plan_or_choose_are_harmless():
    policy = GoodputPolicy(CostCurve.prior())
    policy.observe(Outcome([SeqOutcome(0, 0, 0)], 10.0, 1))
    policy.observe(Outcome([SeqOutcome(0, 0, 0), SeqOutcome(1, 0, 0)], 90.0, 200))
    policy.observe(Outcome([], 0.0, 0))
    assert [policy.curve.target.count(rows) for rows in (1, 200)] == [1, 0]


SURE = st.lists(st.floats(), min_size=6, max_size=6)
ROUND = st.tuples(st.integers(0, 6), SURE, st.integers(0, 6), st.floats(), st.booleans())


@settings(max_examples=50)
@given(st.lists(ROUND, max_size=40))
def test_hostile_rounds_never_break_the_choice(rounds):
    policy = GoodputPolicy(CostCurve.prior(), companion=True, auto=False)
    for n, p, accepted, ms, lookup in rounds:
        plan = policy.plan([Place(0, 6)])
        assert all(math.isfinite(f) for f in plan.floors)
        draft = Draft(0, n, p[:n], p[:n], p[:n], p[:n], [True] * n)
        if lookup:
            draft = Draft(0, n, source=LOOKUP, match_length=n)
        g = policy.choose([draft])[0]
        assert 0 <= g <= n
        seen = [SeqOutcome(0, g, min(accepted, g))]
        policy.observe(Outcome(seen, ms, 1 + g, ms, n, ms, n, ms))
    assert all(math.isfinite(ms) for ms in policy.curve.target.table())


def test_a_sequence_with_much_to_read_waits_while_the_others_draft():
    truth = costs(Q4_K_M, 0.2)
    policy = fresh(truth, 0.2)
    Player(policy, truth).play(texts(0.9, 8, prompt=30))
    lengths = policy.plan([Place(0, 60, 1, 60, 90), Place(1, 60, 3000, 60, 3060)]).lengths
    assert list(lengths) == [16, 0]


@pytest.mark.parametrize(("lag", "at_once", "later"), [(100, 16, 16), (200, 0, 16), (400, 0, 0)])
def test_what_is_left_of_an_answer_without_a_limit_is_guessed(lag, at_once, later):
    """One that has gone on goes on, though not beyond the usual: a prompt that costs 20 tokens is read then, one of 40 never."""
    table = expand({1: 10.0, 16: 11.5, 64: 16.0})
    side = [float(n) for n in range(65)]
    policy = GoodputPolicy(known_curve({0: table}, side, table))
    drafted = [policy.plan([Place(0, 16, lag, 1 << 30, 50 + n)]).lengths[0] for n in range(160)]
    assert (drafted[0], drafted[-1]) == (at_once, later)


def test_a_first_text_that_does_not_suit_ends_no_drafting_in_those_to_come():
    """Recorded answers of a good draft, where the first one wins nothing: others gain what there is, less looks at them."""
    answers = load_rounds(ROUNDS / "good.gz")
    side = Times(TINY, 1.6)
    truth = Costs(Times(BF16, 10.0), side, side)
    greedy = Acceptance().under("greedy")
    player = Player(GoodputPolicy(truth.curve(), greedy), truth)
    assert player.play(answers[:1]).speed < 1.02 * fixed_speed(answers[:1], truth, 0)
    player.play(answers[1:])
    assert player.speed > 0.99 * max(fixed_speed(answers, truth, k) for k in range(17))


def test_a_draft_with_an_end_is_expected_to_bring_no_more():
    expected = {}
    for longest in (2, 16):
        policy = GoodputPolicy(costs(GPU, 0.02).curve(), Acceptance())
        plan = policy.plan([Place(0, 30, depth=10, longest=longest)])
        expected[longest] = policy._table.gain
        assert plan.lengths == [longest]
    assert 0.0 < expected[2] < 0.8 * expected[16]
