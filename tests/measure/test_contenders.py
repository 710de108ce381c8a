"""One model that serves every mode."""

import pytest
from measure.contenders import Ours, lacks
from measure.tasks import Options, parse_mode


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
