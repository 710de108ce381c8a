"""Tests of pyspec.draft.lengths and simple."""

import pytest

from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.lengths import Auto, Companion, Confidence, FixedLength, parse_length
from pyspec.draft.policies import make_policy
from pyspec.draft.simple import ConfidencePolicy, FixedPolicy
from pyspec.draft.types import Draft, Outcome, Place, SeqOutcome, table_bin
from pyspec.errors import OptionError


@pytest.mark.parametrize(("text", "length"), [
    ("fixed:0", FixedLength(0)),
    ("fixed:63", FixedLength(63)),
    (" Confidence:0.75 ", Confidence(0.75)),
    ("companion", Companion()),
    ("AUTO", Auto()),
])  # fmt: skip
def test_lengths_are_read(text, length):
    assert parse_length(text) == length


@pytest.mark.parametrize(
    "text",
    ["", "fixed", "fixed:", "fixed:-1", "fixed:64", "fixed:1e3", "fixed:²", "fixed:99999999999",
     "confidence", "confidence:nan", "confidence:2", "confidence:x", "auto:", "auto:1", "best", 3, None],
)  # fmt: skip
def test_nonsense_is_an_option_error_that_names_the_forms(text):
    with pytest.raises(OptionError, match="fixed:K"):
        parse_length(text)


def test_policies_are_made_by_their_length():
    assert isinstance(make_policy(FixedLength(3)), FixedPolicy)
    assert isinstance(make_policy(Confidence(0.5)), ConfidencePolicy)
    assert isinstance(make_policy(Auto()), GoodputPolicy)


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
    assert make_policy(Companion(), companion=True).plan([Place(0, 8)]).lengths[0] == 8
    assert make_policy(Companion(), companion=True).plan([Place(0, 8)]).use_companion
    assert not make_policy(Companion(), companion=False).plan([Place(0, 8)]).use_companion


def test_a_new_answer_starts_new_statistics_and_keeps_what_was_learned():
    policy = FixedPolicy(2)
    for _ in range(5):
        policy.plan([Place(0, 8)])
        policy.choose([Draft(0, 2, [0.5, 0.5])])
        policy.observe(Outcome([SeqOutcome(0, 2, 1)], 33.0, 3))
    seen = policy.curve.target.table()[3]
    policy.begin_answer()
    assert policy.stats()["rounds"] == 0
    assert policy.curve.target.table()[3] == seen == pytest.approx(33.0)
