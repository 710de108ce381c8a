"""ChatSettings by name: every one can be set, read back and refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.chat.talk import FIELDS, ChatSettings, changed, values
from pyspec.errors import OptionError
from pyspec.sampling.verification import Margin


def test_values_are_what_set_takes():
    settings = ChatSettings()
    for name, value in values(settings).items():
        settings = changed(settings, name, value)
    assert settings == ChatSettings()


@pytest.mark.parametrize(("name", "value", "where"), [
    ("gap", "inf", lambda s: s.gap == math.inf), ("budget", "none", lambda s: s.budget is None),
    ("max_tokens", "all", lambda s: s.max_tokens is None), ("seed", "7", lambda s: s.seed == 7),
    ("wrap", "off", lambda s: not s.wrap), ("dry_multiplier", "0.8", lambda s: s.sampling(1).dry),
    ("dry_penalty_last_n", "-1", lambda s: s.sampling(1).dry_penalty_last_n == -1),
    ("draft_max", "64", lambda s: s.draft_max == 64), ("length", "fixed:3", lambda s: s.length == "fixed:3"),
])  # fmt: skip
def test_changed(name, value, where):
    assert where(changed(ChatSettings(), name, value))


WRONG = {
    "temperature": ["nan", "-1", "inf"], "top_p": ["0"], "top_k": ["1.5"], "max_tokens": ["0", "2147483648"], "seed": ["-1"],
    "theta": ["2"], "gap": ["nan"], "length": ["fixed:x"], "wrap": ["maybe"], "verify": ["lax"], "confirm": ["17"],
    "stats": ["many"], "draft_max": ["65"], "dry_base": ["0.5"], "dry_penalty_last_n": ["-2"],
    "xtc_threshold": ["2"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, each) for name in WRONG for each in WRONG[name]]
)
def test_values_out_of_range_are_refused(name, value):
    with pytest.raises(OptionError, match=f"^{name}: "):
        changed(ChatSettings(), name, value)


@given(st.sampled_from(list(FIELDS)), st.text())
def test_any_text_is_taken_or_refused(name, value):
    try:
        settings = changed(ChatSettings(), name, value)
    except OptionError:
        return
    assert changed(ChatSettings(), name, values(settings)[name]) == settings


def test_margin_is_kept_while_strict():
    settings = changed(changed(ChatSettings(), "theta", "0.8"), "verify", "strict")
    assert changed(settings, "verify", "margin").rule == Margin(theta=0.8)
