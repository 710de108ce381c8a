"""Reasoning: what stands between a family's marks, and whether an answer was cut there."""

from __future__ import annotations

import pytest
from text.reasoning_examples import FAMILIES

from pyspec.text.notation import Notation
from pyspec.text.parser import AnswerParser
from pyspec.text.parts import WholeAnswer
from pyspec.text.reasoning import quiet_arguments

CASES = [(mark, *example) for mark, examples in FAMILIES.items() for example in examples]


def test_there_are_ten_of_each() -> None:
    """The figure that is claimed: five families, ten examples each."""
    assert [len(examples) for examples in FAMILIES.values()] == [10] * 5


@pytest.mark.parametrize(
    ("template", "arguments"),
    [
        ("{% if enable_thinking is false %}<think></think>{% endif %}", {"enable_thinking": False}),
        ("{%- if thinking and x %}<think>{% endif %}", {"thinking": False}),
        ("{% if message.thinking is defined %}<think>{{ message.thinking }}{% endif %}", {}),
        ("{% if 'thinking' in message %}<think>{% endif %}", {}),
        ("{{ thinking_budget }}<seed:think>", {"thinking_budget": 0}),
        ("{% if reasoning_effort in ['high', 'no_think'] %}", {"reasoning_effort": "no_think"}),
        ("{{ 'Reasoning: ' + reasoning_effort }}", {"reasoning_effort": "low"}),
        ("{{ messages }}", {}),
    ],
)
def test_what_asks_for_no_reasoning(template: str, arguments: dict[str, object]) -> None:
    """The variable that the template reads; fields of messages are none."""
    assert quiet_arguments(template) == arguments


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_reasoning_is_taken_apart(case: tuple[str, str, str, str, str, str, bool]) -> None:
    """At once, and character by character."""
    template, _, prompt, text, *expected = case
    notation = Notation.of(template)
    for pieces in ([text], list(text)):
        parser = AnswerParser(notation, inside=notation.start(f"user{prompt}") == "inside")
        parts = [part for piece in pieces for part in parser.push(piece)]
        answer = WholeAnswer.of(parts + parser.finish())
        assert [answer.reasoning, answer.content, parser.inside] == expected
