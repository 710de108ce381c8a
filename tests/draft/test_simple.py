"""Tests of pyspec.draft.simple, and of the lengths that name its policies."""

import pytest

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.policies import Length, Policies, parse_length
from pyspec.draft.simple import FixedPolicy, PlainRound
from pyspec.draft.types import Draft, Place
from pyspec.errors import OptionError


def policy_of(text, companion=False):
    made = Policies(parse_length(text), CostCurve.prior(), Acceptance(), companion=companion)
    return made.of(None)


@pytest.mark.parametrize(("text", "length", "policy"), [
    ("fixed:0", Length("fixed", 0), FixedPolicy),
    (" Fixed:63 ", Length("fixed", 63), FixedPolicy),
    ("companion", Length("companion"), GoodputPolicy),
    ("AUTO", Length("auto"), GoodputPolicy),
])  # fmt: skip
def test_lengths_are_read_and_have_their_policies(text, length, policy):
    assert parse_length(text) == length
    assert isinstance(policy_of(text), policy)


@pytest.mark.parametrize(
    "text",
    ["", "fixed", "fixed:", "fixed:-1", "fixed:64", "fixed:1e3", "fixed:²", "fixed:99999999999",
     "confidence:0.5", "auto:", "auto:1", "best", 3, None],
)  # fmt: skip
def test_nonsense_is_an_option_error_that_names_the_forms(text):
    with pytest.raises(OptionError, match="fixed:K"):
        parse_length(text)


def test_fixed_drafts_its_length_and_respects_room():
    assert FixedPolicy(4).plan([Place(0, 9)]).lengths[0] == 4
    assert FixedPolicy(4).plan([Place(0, 2)]).lengths[0] == 2
    assert FixedPolicy(0).plan([Place(0, 9)]).lengths[0] == 0
    assert FixedPolicy(4).choose([Draft(0, 3), Draft(1, 9)]) == [3, 4]


def test_companion_always_drafts_and_auto_waits():
    plan = policy_of("companion", companion=True).plan([Place(0, 8)])
    assert (plan.lengths[0], plan.use_companion) == (8, True)
    assert not policy_of("companion").plan([Place(0, 8)]).use_companion


@pytest.mark.parametrize(("rounds", "believed"), [
    ((), 0.0), ((3.0,), 0.0), ((3.0, 2.0), 0.0), # the first ones
    ((3.0, 2.0, 0.5, 4.0, 0.7), 0.5), # others lengthen rounds, and only that
    ((0.1, 0.1, 0.1, *[0.6] * 9), 0.6), # all rounds do
])  # fmt: skip
def test_what_works_beside_is_left_out(rounds, believed):
    policy = FixedPolicy(0)
    for ms in rounds:
        policy.learn_plain([PlainRound(1, 10.0, 10.0 + ms, 5)])
    assert policy.plain_aside == pytest.approx(believed)


def test_a_mean_of_several_rounds_is_believed_at_once():
    policy = FixedPolicy(0)
    for _ in range(8):
        policy.watch(PlainRound(1, 10.0, 10.4, 5))
    assert policy.plain_aside == pytest.approx(0.4)
