"""The acceptance rules as the user states them."""

import math

import pytest

from pyspec import SpeculativeLlama
from pyspec.engine.handle import Gate
from pyspec.engine.options import Speculation
from pyspec.errors import OptionError
from pyspec.sampling.verification import Margin, Strict


@pytest.mark.parametrize(("option", "value"), [
    ("theta", -0.1), ("theta", 1.1), ("theta", math.nan), ("gap", -1.0), ("gap", math.nan),
    ("budget", -0.5), ("budget", math.nan), ("confirm", -1), ("confirm", 17), ("confirm", 1.5),
])  # fmt: skip
def test_out_of_range_is_an_option_error(option, value):
    with pytest.raises(OptionError, match=option):
        Margin(**{option: value})


def test_the_gate_has_the_rules_numbers():
    strict = Gate(Strict(), sampled=True)
    assert (strict.gate.theta, strict.state.spent) == (1.0, 0.0)
    gate = Gate(Margin(theta=0.5, gap=2.0, budget=4.0, confirm=2), sampled=True).gate
    found = (gate.theta, gate.gap, gate.budget, gate.confirm, gate.sampled)
    assert found == (0.5, 2.0, 4.0, 2, 1)
    assert Margin().limits == (0.9, 1.0, math.inf)
    assert Gate(Margin(), sampled=False).gate.confirm == 0


@pytest.mark.parametrize("rule", ["margin", None, Margin])
def test_what_is_no_rule_is_refused_before_the_model_is_loaded(rule, tiny_target):
    """A rule given by name, or its class instead of one of its kind, would fail in mid-answer."""
    makers = [lambda **options: SpeculativeLlama(str(tiny_target), **options), Speculation]
    for make in makers if rule is not None else makers[:1]:
        with pytest.raises(OptionError, match=r"Strict\(\) or Margin\(\)"):
            make(verification=rule)
