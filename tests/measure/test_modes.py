"""Mode strings, and one model that serves every mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec.errors import OptionError
from pyspec.measure.modes import Bench, parse_mode, parse_modes
from pyspec.rules import Margin, Strict
from pyspec.sampling import Sampling

GREEDY = Sampling(temperature=0.0)


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
def bench(open_llama: Callable[..., Any], tiny_target: Path, tiny_draft: Path) -> Bench:
    """A model with lookup and a draft."""
    return Bench(open_llama(tiny_target, draft=f"lookup+{tiny_draft}", length="auto"))


def answer(bench: Bench, text: str, n: int = 24) -> list[int]:
    """The tokens that a mode gives from an empty KV."""
    bench.forget()
    steps = bench.llm.steps([5, 6, 7, 8], GREEDY, max_tokens=n, **bench.asked(parse_mode(text)))
    return [token.id for step in steps for token in step.tokens]


def test_strict_modes_of_one_model_agree(bench: Bench) -> None:
    """Whatever drafts, strict answers are the plain one's."""
    plain = answer(bench, "plain")
    assert len(plain) == 24
    for text in ("strict", "fixed:4+strict+model", "lookup+strict", "nothing+strict"):
        assert answer(bench, text) == plain


def test_a_mode_drafts_with_what_it_names_alone(bench: Bench) -> None:
    """`nothing` drafts nothing, `model` drafts, `plain` does not."""
    answer(bench, "fixed:4+strict+nothing")
    assert bench.llm.last_speculation["drafted"] == 0
    answer(bench, "fixed:4+strict+model")
    assert bench.llm.last_speculation["drafted"] > 0
    answer(bench, "plain")
    assert bench.llm.last_speculation["drafted"] == 0


def test_forget_empties_the_kv(bench: Bench) -> None:
    """After it, no prompt is found read already."""
    answer(bench, "plain")
    answer(bench, "strict")
    assert bench.llm.last_speculation["prompt_kept"] == 0


def test_what_is_not_loaded_is_said(bench: Bench) -> None:
    """A mode that needs a companion is refused in words."""
    assert "companion" in bench.lacks(parse_mode("companion+strict"))
    assert bench.lacks(parse_mode("lookup+strict")) == ""
