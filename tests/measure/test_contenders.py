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


def test_a_mode_drafts_with_what_it_names_alone(llm):
    answer(llm, "fixed:4+strict+nothing")
    assert llm.last_speculation["drafted"] == 0
    answer(llm, "fixed:4+strict+model")
    assert llm.last_speculation["drafted"] > 0
    answer(llm, "plain")
    assert llm.last_speculation["drafted"] == 0


def test_forget_empties_the_kv(llm):
    answer(llm, "plain")
    answer(llm, "strict")
    assert llm.last_speculation["prompt_kept"] == 0


def test_what_is_not_loaded_is_said(llm):
    assert "companion" in lacks(llm, parse_mode("companion+strict"))
    assert lacks(llm, parse_mode("lookup+strict")) == ""


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
