"""Checks of answers, and modes as strings."""

from __future__ import annotations

import math
from typing import Any

import pytest
from measure.questions import load_questions
from measure.tasks import is_closed, parse_mode, parse_modes, passes

from pyspec.errors import InputError, OptionError
from pyspec.sampling.verification import Margin, Strict

# -- checks ------------------------------------------------------------------------------------------------------------


def test_shipped_checks_are_known_and_one_a_turn() -> None:
    """Every check of the shipped set is of a known kind, and none lacks its turn."""
    checked = [q for q in load_questions() if q.check]
    assert len(checked) > 20
    for question in checked:
        assert len(question.check) == len(question.turns)
        for what in question.check:
            assert what is None or passes(what, "") is False


@pytest.mark.parametrize(
    ("what", "good", "bad"),
    [
        ({"kind": "json"}, 'Here:\n```json\n{"a": 1}\n```', '{"a": 1'),
        ({"kind": "json", "keys": ["a"]}, '{"a": 1}', '{"b": 1}'),
        ({"kind": "json", "keys": ["a"]}, '{"a": 1}', '["a"]'),
        ({"kind": "list", "n": 2}, "Two:\n\n1. a\n2. b\n", "1. a\n2. b\n3. c"),
        ({"kind": "list", "n": 2}, "- a\n- b", "a\nb"),
        ({"kind": "copy", "text": "a b\nc"}, "Sure:\na b  \nc\n", "a  b\nc"),
        ({"kind": "number", "value": 1234}, "It is 2, so 1,234.", "1234 or 5"),
        ({"kind": "number", "value": -0.5}, "-0.5", "none"),
        ({"kind": "compiles"}, "```python\nx = 1\n```", "```python\nx = \n```"),
        ({"kind": "compiles"}, "x = 1", ""),
    ],
)  # fmt: skip
def test_each_kind_tells_good_from_bad(what: dict[str, Any], good: str, bad: str) -> None:
    assert passes(what, good) is True
    assert passes(what, bad) is False


def test_an_unknown_kind_is_refused() -> None:
    """A typing error in a questions file is not a failed answer."""
    with pytest.raises(InputError, match="unknown check 'jsn'"):
        passes({"kind": "jsn"}, "{}")


# -- modes -------------------------------------------------------------------------------------------------------------


def test_plain_does_not_speculate() -> None:
    """`plain` is decoding with speculation off."""
    assert parse_mode("plain").speculation.enabled is False


def test_parts_may_stand_in_any_order() -> None:
    """Rule, length and drafter are told apart by their words."""
    one, two = parse_mode("fixed:4+strict+model"), parse_mode("model+strict+fixed:4")
    assert (one.rule, one.length, one.drafting) == (two.rule, two.length, two.drafting)
    assert (one.rule, one.length, one.drafting) == (Strict(), "fixed:4", "model")


def test_margin_takes_its_limits() -> None:
    """theta, gap and budget follow slashes."""
    mode = parse_mode("margin/gap=inf/theta=0.84/budget=8")
    assert mode.rule == Margin(0.84, math.inf, 8.0)


@pytest.mark.parametrize(
    ("text", "exact"),
    [("plain", True), ("strict", True), ("margin", False), ("margin/theta=1", True)],
)
def test_exact_modes_are_those_without_an_open_gate(text: str, exact: bool) -> None:
    """Only these must equal plain decoding."""
    assert parse_mode(text).exact is exact


@pytest.mark.parametrize(
    "text",
    ["", "fast", "fixed:x", "margin/gap=a", "margin/speed=2", "strict/gap=1", "plain,plain",
     "margin/theta=2", "fixed:4+", "plain+strict", "margin+block"],
)  # fmt: skip
def test_nonsense_is_an_option_error(text: str) -> None:
    with pytest.raises(OptionError):
        parse_modes(text)


@pytest.mark.parametrize(
    ("rule", "closed"),
    [
        (Margin(), False),
        (Margin(theta=1.0), True),
        (Margin(budget=0.0), True),
        (Margin(theta=0.999), False),
    ],
)
def test_closed(rule, closed):
    """A gate that can never open says so."""
    assert is_closed(rule) is closed
