"""Reasoning: what stands between a family's marks, and whether an answer was cut there."""

import pytest
from helpers.reasoning_examples import FAMILIES

from pyspec.text.notation import Notation, known_efforts, nearest_effort, quiet_arguments
from pyspec.text.parser import AnswerParser
from pyspec.text.parts import WholeAnswer

CASES = [(mark, *example) for mark, examples in FAMILIES.items() for example in examples]


def test_there_are_ten_of_each():
    assert [len(examples) for examples in FAMILIES.values()] == [10] * 5


@pytest.mark.parametrize(("template", "arguments"), [
    ("{% if enable_thinking is false %}<think></think>{% endif %}", {"enable_thinking": False}),
    ("{%- if thinking and x %}<think>{% endif %}", {"thinking": False}),
    ("{% if message.thinking is defined %}<think>{{ message.thinking }}{% endif %}", {}),
    ("{% if 'thinking' in message %}<think>{% endif %}", {}),
    ("{{ thinking_budget }}<seed:think>", {"thinking_budget": 0}),
    ("{% if reasoning_effort in ['high', 'no_think'] %}", {"reasoning_effort": "no_think"}),
    ("{{ 'Reasoning: ' + reasoning_effort }}", {"reasoning_effort": "low"}),
    ("{{ messages }}", {}),
])  # fmt: skip
def test_what_asks_for_no_reasoning(template, arguments):
    """The variable that the template reads; fields of messages are none."""
    assert quiet_arguments(template) == arguments


HY3 = "{% if reasoning_effort not in ['high', 'low', 'no_think'] %}{{ raise_exception('') }}{% endif %}"
KIMI = HY3.replace("reasoning_effort", "thinking_effort").replace("no_think", "max")


@pytest.mark.parametrize(("template", "asked", "variable", "word"), [
    (HY3, "medium", "reasoning_effort", "high"), (HY3, "minimal", "reasoning_effort", "low"),
    (HY3, "low", "reasoning_effort", "low"), (HY3, "max", "reasoning_effort", "high"),
    (KIMI, "medium", "thinking_effort", "high"), (KIMI, "minimal", "thinking_effort", "low"),
    (KIMI, "max", "thinking_effort", "max"),
])  # fmt: skip
def test_words_for_effort_are_the_templates(template, asked, variable, word):
    """The nearest of those that it takes; of two as near, that for more."""
    found = known_efforts(template)
    assert (found[0], nearest_effort(asked, found[1])) == (variable, word)


@pytest.mark.parametrize("template", [
    "{{ 'Reasoning: ' + reasoning_effort }}", "{% if reasoning_effort in ['low', 'minimal'] %}{% endif %}",
    "{% if reasoning_effort not in [1, 2] %}{% endif %}", "{{ messages }}",
])  # fmt: skip
def test_templates_that_refuse_no_word_get_it_as_it_is(template):
    assert known_efforts(template) is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_reasoning_is_taken_apart(case):
    template, _, prompt, text, *expected = case
    notation = Notation.of(template)
    for pieces in ([text], list(text)):
        parser = AnswerParser(notation, inside=notation.start(f"user{prompt}") == "inside")
        parts = [part for piece in pieces for part in parser.push(piece)]
        answer = WholeAnswer.of(parts + parser.finish())
        assert [answer.reasoning, answer.content, parser.inside] == expected
