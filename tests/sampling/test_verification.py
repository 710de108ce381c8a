"""The acceptance rules as the user states them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pyspec import SpeculativeLlama
from pyspec.engine.handle import Gate
from pyspec.engine.options import Speculation
from pyspec.errors import OptionError
from pyspec.sampling.verification import Margin, Strict


def test_names():
    assert (Strict().name, Margin().name) == ("strict", "margin")


def test_defaults_are_the_papers_ratio_and_one_nat():
    assert Margin().limits == (0.9, 1.0, math.inf)


def test_limits_are_passed_on():
    rule = Margin(theta=0.5, gap=math.inf, budget=2.5)
    assert rule.limits == (0.5, math.inf, 2.5)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("theta", -0.1),
        ("theta", 1.1),
        ("theta", math.nan),
        ("gap", -1.0),
        ("gap", math.nan),
        ("budget", -0.5),
        ("budget", math.nan),
        ("confirm", -1),
        ("confirm", 17),
        ("confirm", 1.5),
    ],
)
def test_out_of_range_is_an_option_error(option, value):
    """The message names option and value; a NaN is out of every range."""
    with pytest.raises(OptionError, match=option):
        Margin(**{option: value})


def test_rules_are_values():
    assert len({Margin(), Margin(), Margin(gap=2.0), Strict(), Strict()}) == 3


def test_strict_gate_is_closed():
    gate = Gate(Strict(), sampled=True)
    assert gate.gate.theta == 1.0
    assert gate.state.spent == 0.0


def test_margin_gate_carries_the_limits():
    gate = Gate(Margin(theta=0.5, gap=2.0, budget=4.0), sampled=True).gate
    found = (gate.theta, gate.gap, gate.budget, gate.sampled)
    assert found == (0.5, 2.0, 4.0, 1)


@pytest.mark.parametrize("confirm", [0, 2])
def test_the_gate_has_what_confirms(confirm):
    assert Gate(Margin(confirm=confirm), sampled=False).gate.confirm == confirm


@pytest.mark.parametrize("rule", ["margin", None, Margin])
def test_what_is_no_rule_is_refused_before_the_model_is_loaded(
    rule: Any, tiny_target: Path
) -> None:
    """A rule given by name, or its class instead of one of its kind, would fail in mid-answer."""
    with pytest.raises(OptionError, match=r"Strict\(\) or Margin\(\)"):
        SpeculativeLlama(str(tiny_target), verification=rule)
    if rule is not None:
        with pytest.raises(OptionError, match=r"Strict\(\) or Margin\(\)"):
            Speculation(verification=rule)
