"""Mode strings, and one model that serves every mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec.errors import OptionError
from pyspec.measure.modes import Ours, lacks, parse_mode, parse_modes
from pyspec.measure.records import Options
from pyspec.rules import Margin, Strict


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
     "margin/theta=2", "fixed:4+", "plain+strict"],
)  # fmt: skip
def test_nonsense_is_an_option_error(text: str) -> None:
    """No mode is guessed."""
    with pytest.raises(OptionError):
        parse_modes(text)


@pytest.fixture
def llm(open_llama: Callable[..., Any], tiny_target: Path, tiny_draft: Path) -> Any:
    """A model with lookup and a draft."""
    return open_llama(tiny_target, draft=f"lookup+{tiny_draft}", length="auto")


def answer(llm: Any, text: str, n: int = 24) -> list[int]:
    """The tokens that a mode gives from an empty KV."""
    mode = Ours(llm, parse_mode(text))
    mode.forget()
    return mode.answer([5, 6, 7, 8], n, Options()).tokens


def test_strict_modes_of_one_model_agree(llm: Any) -> None:
    """Whatever drafts, strict answers are the plain one's."""
    plain = answer(llm, "plain")
    assert len(plain) == 24
    for text in ("strict", "fixed:4+strict+model", "lookup+strict", "nothing+strict"):
        assert answer(llm, text) == plain


def test_a_mode_drafts_with_what_it_names_alone(llm: Any) -> None:
    """`nothing` drafts nothing, `model` drafts, `plain` does not."""
    answer(llm, "fixed:4+strict+nothing")
    assert llm.last_speculation["drafted"] == 0
    answer(llm, "fixed:4+strict+model")
    assert llm.last_speculation["drafted"] > 0
    answer(llm, "plain")
    assert llm.last_speculation["drafted"] == 0


def test_forget_empties_the_kv(llm: Any) -> None:
    """After it, no prompt is found read already."""
    answer(llm, "plain")
    answer(llm, "strict")
    assert llm.last_speculation["prompt_kept"] == 0


def test_what_is_not_loaded_is_said(llm: Any) -> None:
    """A mode that needs a companion is refused in words."""
    assert "companion" in lacks(llm, parse_mode("companion+strict"))
    assert lacks(llm, parse_mode("lookup+strict")) == ""
