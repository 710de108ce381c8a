"""One model that serves every mode."""

import math

import pytest
from measure.contenders import Ours, lacks
from measure.tasks import Options, parse_mode, parse_modes

from pyspec.errors import OptionError
from pyspec.sampling.verification import Margin, Strict


@pytest.fixture
def llm(open_llama, tiny_target, tiny_draft):
    return open_llama(tiny_target, draft=f"lookup+{tiny_draft}", length="auto")


def answer(llm, text, n=24):
    mode = Ours(llm, parse_mode(text))
    mode.forget()
    return mode.answer([5, 6, 7, 8], n, Options()).tokens


def test_strict_modes_of_one_model_agree(llm):
    plain = answer(llm, "plain")
    assert len(plain) == 24
    for text in ("strict", "fixed:4+strict+model", "lookup+strict", "nothing+strict"):
        assert answer(llm, text) == plain


def test_a_mode_drafts_with_what_it_names_alone_and_finds_an_empty_kv(llm):
    for text, drafts in (
        ("fixed:4+strict+nothing", False),
        ("fixed:4+strict+model", True),
        ("plain", False),
    ):
        answer(llm, text)
        assert (llm.last_speculation["drafted"] > 0) is drafts
        assert llm.last_speculation["prompt_kept"] == 0


def test_what_is_not_loaded_is_said(llm):
    assert "companion" in lacks(llm, parse_mode("companion+strict"))
    assert lacks(llm, parse_mode("lookup+strict")) == ""


@pytest.mark.parametrize(("text", "rule", "exact", "speculates"), [
    ("plain", Strict(), True, False),
    ("strict", Strict(), True, True),
    ("margin/gap=inf/theta=0.84/budget=8", Margin(0.84, math.inf, 8.0), False, True),
])  # fmt: skip
def test_a_mode_has_a_rule_and_is_exact_without_an_open_gate(text, rule, exact, speculates):
    mode = parse_mode(text)
    assert (mode.rule, mode.exact, mode.speculation.enabled) == (rule, exact, speculates)


def test_parts_may_stand_in_any_order():
    for text in ("fixed:4+strict+model", "model+strict+fixed:4"):
        mode = parse_mode(text)
        assert (mode.rule, mode.length, mode.drafting) == (Strict(), "fixed:4", "model")


@pytest.mark.parametrize(
    "text",
    ["", "fast", "fixed:x", "margin/gap=a", "margin/speed=2", "strict/gap=1", "plain,plain",
     "margin/theta=2", "fixed:4+", "plain+strict", "margin+block"],
)  # fmt: skip
def test_nonsense_is_an_option_error(text):
    with pytest.raises(OptionError):
        parse_modes(text)
