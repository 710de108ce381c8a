"""Modes as strings."""

import math

import pytest
from measure.tasks import parse_mode, parse_modes

from pyspec.errors import OptionError
from pyspec.sampling.verification import Margin, Strict


def test_plain_does_not_speculate():
    assert parse_mode("plain").speculation.enabled is False


def test_parts_may_stand_in_any_order():
    one, two = parse_mode("fixed:4+strict+model"), parse_mode("model+strict+fixed:4")
    assert (one.rule, one.length, one.drafting) == (two.rule, two.length, two.drafting)
    assert (one.rule, one.length, one.drafting) == (Strict(), "fixed:4", "model")


def test_margin_takes_its_limits():
    mode = parse_mode("margin/gap=inf/theta=0.84/budget=8")
    assert mode.rule == Margin(0.84, math.inf, 8.0)


@pytest.mark.parametrize(("text", "exact"), [("plain", True), ("strict", True), ("margin", False)])
def test_exact_modes_are_those_without_an_open_gate(text, exact):
    assert parse_mode(text).exact is exact


@pytest.mark.parametrize(
    "text",
    ["", "fast", "fixed:x", "margin/gap=a", "margin/speed=2", "strict/gap=1", "plain,plain",
     "margin/theta=2", "fixed:4+", "plain+strict", "margin+block"],
)  # fmt: skip
def test_nonsense_is_an_option_error(text):
    with pytest.raises(OptionError):
        parse_modes(text)
