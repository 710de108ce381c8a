"""Policies of one object: what each has learned, and of whom."""

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.policies import MAX_POLICIES, Policies, parse_length
from pyspec.draft.types import Draft, Outcome, Place, SeqOutcome
from pyspec.sampling.verification import Margin, Strict


def made_of(**more):
    return Policies(parse_length("auto"), CostCurve.prior(), Acceptance(), companion=False, **more)


def test_texts_that_are_drawn_otherwise_are_forecast_and_learned_from_apart():
    """One policy serves a batch of both: each draft's chances are those of its own way to draw."""
    policy = GoodputPolicy(learned=Acceptance())
    other = Acceptance().under("greedy")
    policy.others = lambda seq: other if seq == 1 else None
    assert policy.learned_of([0]) is policy.learned_of([0, 1]) is policy.learned
    assert policy.learned_of([1]) is policy.learned_of([1, 1]) is other
    assert policy.learned_of([]) is policy.learned
    policy.plan([Place(0, 4), Place(1, 4)])
    policy.choose([Draft(0, 2, p=[0.5, 0.5]), Draft(1, 2, p=[0.5, 0.5])])
    policy.observe(Outcome([SeqOutcome(0, 0, 0), SeqOutcome(1, 2, 1)], 10.0, 4))
    assert sum(policy.learned.calibration.seen) == 0.0
    assert sum(other.calibration.seen) == 2.0


def test_a_policy_asks_how_a_text_is_drawn_when_it_needs_to_know():
    """One that is made after a text began knows of it, and one that names another draw has that for its own."""
    made = made_of(draw="coupled")
    made.begin_sequence(3, Strict(), "greedy")
    policy = made.of(None)
    assert policy.learned_of([3]) is not policy.learned
    assert policy.learned_of([3]) is policy.learned_of([3])
    assert policy.learned_of([5]) is policy.learned
    assert made.of(None, draw="greedy").learned_of([3]) is made.of(None, draw="greedy").learned
    made.begin_sequence(3, Strict(), "coupled")
    assert policy.learned_of([3]) is policy.learned


def test_a_round_is_planned_by_the_policy_of_how_its_texts_are_drawn():
    """A server that samples by default and is asked for greedy answers plans by what it knows of those."""
    made = made_of(draw="coupled")
    for seq in (3, 4):
        made.begin_sequence(seq, Strict(), "greedy")
    made.begin_sequence(5, Strict(), "coupled")
    greedy = made.of(None, draw="greedy")
    assert made.shared({3: None}) == {greedy: [3]}
    assert made.shared({5: None}) == {made.of(None): [5]}
    assert made.shared({3: None, 4: None, 5: None}) == {greedy: [3, 4, 5]}
    assert greedy.learned_of([5]) is made.of(None).learned
    assert made.shared({}) == {}


def test_texts_of_one_length_share_a_round_whoever_names_it():
    made = made_of()
    assert made.shared({0: None, 1: "auto"}) == {made.of(None): [0, 1]}
    assert made.shared({0: None, 1: "fixed:2"}) == {made.of(None): [0], made.of("fixed:2"): [1]}


def test_a_policy_in_use_outlives_many_others():
    made = made_of()
    used = made.of(None)
    for k in range(MAX_POLICIES * 2):
        made.of(f"fixed:{k % 60}", draw=("greedy", "coupled")[k // 60])
        assert made.of(None) is used
    assert len(made._made) == MAX_POLICIES


def test_what_answers_taught_is_told_by_rule_and_draw():
    """A policy of fixed length learns nothing that others could begin with."""
    made = made_of()
    assert made.taught() == {}
    made.of("fixed:2")
    made.of(None).learned.calibration.update(0, 6, False)
    made.of(None, rule=Margin(), draw="coupled").learned.calibration.update(0, 3, True)
    told = made.taught()
    assert set(told) == {"strict greedy", "margin coupled"}
    assert told["strict greedy"].calibration.seen[6] == 1.0
    assert told["margin coupled"].calibration.hits[3] == 1.0


def test_a_text_that_moves_goes_on_under_its_new_number():
    """What it lost, how far it is and how it is drawn: a stream may move in the middle of an answer."""
    made = made_of()
    made.begin_sequence(3, Margin(), "coupled")
    policy = made.of(None, Margin(), "coupled")
    assert isinstance(policy, GoodputPolicy)
    policy.plan([Place(3, 4, depth=10)])
    policy.plan([Place(3, 4, depth=25)])
    made.move_sequence(3, 0)
    assert policy._emitted(0) == 15
    assert made.shared({0: None}) == {policy: [0]}
