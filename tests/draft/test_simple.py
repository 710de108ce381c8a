"""Tests of pyspec.draft.simple, and of the lengths that name its policies."""

import pytest

from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.policies import Length, make_policy, parse_length
from pyspec.draft.simple import Aside, ConfidencePolicy, FixedPolicy
from pyspec.draft.types import Draft, Outcome, Place, SeqOutcome, table_bin
from pyspec.errors import OptionError


@pytest.mark.parametrize(("text", "length", "policy"), [
    ("fixed:0", Length("fixed", 0), FixedPolicy),
    ("fixed:63", Length("fixed", 63), FixedPolicy),
    (" Confidence:0.75 ", Length("confidence", 0.75), ConfidencePolicy),
    ("companion", Length("companion"), GoodputPolicy),
    ("AUTO", Length("auto"), GoodputPolicy),
])  # fmt: skip
def test_lengths_are_read_and_have_their_policies(text, length, policy):
    assert parse_length(text) == length
    assert isinstance(make_policy(length), policy)


@pytest.mark.parametrize(
    "text",
    ["", "fixed", "fixed:", "fixed:-1", "fixed:64", "fixed:1e3", "fixed:²", "fixed:99999999999",
     "confidence", "confidence:nan", "confidence:2", "confidence:x", "auto:", "auto:1", "best", 3, None],
)  # fmt: skip
def test_nonsense_is_an_option_error_that_names_the_forms(text):
    with pytest.raises(OptionError, match="fixed:K"):
        parse_length(text)


def test_fixed_drafts_its_length_and_respects_room():
    assert FixedPolicy(4).plan([Place(0, 9)]).lengths[0] == 4
    assert FixedPolicy(4).plan([Place(0, 2)]).lengths[0] == 2
    assert FixedPolicy(0).plan([Place(0, 9)]).lengths[0] == 0
    assert FixedPolicy(4).choose([Draft(0, 3), Draft(1, 9)]) == [3, 4]


def test_confidence_cuts_at_the_first_unsure_token():
    policy = ConfidencePolicy(0.6)
    assert policy.choose([Draft(0, 4, [0.9, 0.61, 0.59, 0.99])]) == [2]
    assert policy.choose([Draft(0, 2, [0.9, float("nan")])]) == [1]


@pytest.mark.parametrize("p", [0.0, 0.3, 0.75, 0.999, 1.0])
def test_the_loop_never_stops_a_confident_draft(p):
    """The coarse table in the loop lets every token through that the threshold lets through."""
    plan = ConfidencePolicy(p).plan([Place(0, 16)])
    assert plan.table is not None
    for sure in (p, (p + 1.0) / 2.0, 1.0):
        assert plan.table[table_bin(sure)] >= min(plan.floors)


def test_companion_always_drafts_and_auto_waits():
    assert make_policy(Length("companion"), companion=True).plan([Place(0, 8)]).lengths[0] == 8
    assert make_policy(Length("companion"), companion=True).plan([Place(0, 8)]).use_companion
    assert not make_policy(Length("companion"), companion=False).plan([Place(0, 8)]).use_companion


@pytest.mark.parametrize(("rounds", "believed"), [
    ((), 0.0), ((3.0,), 0.0), ((3.0, 2.0), 0.0), # the first ones
    ((3.0, 2.0, 0.5, 4.0, 0.7), 0.5), # others lengthen rounds, and only that
    ((0.1, 0.1, 0.1, *[0.6] * 9), 0.6), # all rounds do
])  # fmt: skip
def test_what_works_beside_is_left_out(rounds, believed):
    aside = Aside()
    for ms in rounds:
        aside.add(ms)
    assert aside.ms == believed


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
