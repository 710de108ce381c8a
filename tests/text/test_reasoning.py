"""Reasoning: what stands between a family's marks, and whether an answer was cut there."""

import pytest

from pyspec.text.notation import Notation, known_efforts, nearest_effort, quiet_arguments
from pyspec.text.parser import AnswerParser
from pyspec.text.parts import Result

Example = tuple[str, str, str, str, str, bool]
"""What it is, the prompt's end, the answer, its reasoning, its content, whether it was cut inside."""


def _tagged(first: str, last: str) -> list[Example]:
    """Of a family that writes reasoning between two marks at the beginning."""
    return [
        ("marked", "", f"{first}Hm.{last}Yes.", "Hm.", "Yes.", False),
        ("on lines of its own", "", f"{first}\nHm.\nOh.\n{last}\n\nYes.\n", "Hm.\nOh.", "Yes.\n", False),
        ("opened by the prompt", f"{first}\n", f"Hm.\n{last}\n\nYes.", "Hm.", "Yes.", False),
        ("opened twice", first, f"{first}\nHm.{last}Yes.", "Hm.", "Yes.", False),
        ("closed by the prompt", f"{first}\n\n{last}\n\n", "Yes.", "", "Yes.", False),
        ("empty", "", f"{first}\n\n{last}\n\nYes.", "", "Yes.", False), ("none", "", " Yes.\n", "", " Yes.\n", False),
        ("cut", "", f"{first}Hm", "Hm", "", True), ("cut, opened by the prompt", first, "Hm, ", "Hm,", "", True),
        ("half of its last mark", first, f"Hm.{last[:-1]}", f"Hm.{last[:-1]}", "", True),
    ]  # fmt: skip


THINK = [
    *_tagged("<think>", "</think>")[:-1],
    ("a mark in words", "", "Write <think> first.", "", "Write <think> first.", False),
]
BRACKETS = _tagged("[THINK]", "[/THINK]")
COHERE = [
    *_tagged("<|START_THINKING|>", "<|END_THINKING|>")[:-1],
    ("with marks of the content", "",
     "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Hm.", "Yes.", False),
]  # fmt: skip
_SAID = "<|channel>thought\n"
GEMMA: list[Example] = [
    ("marked", "", f"{_SAID}Hm.\n<channel|>Yes.", "Hm.", "Yes.", False),
    ("two of them", "", f"{_SAID}Hm.<channel|>Yes. {_SAID}Oh.<channel|>No.", "Hm.\n\nOh.", "Yes. No.", False),
    ("opened by the prompt", _SAID, "Hm.<channel|>Yes.", "Hm.", "Yes.", False),
    ("closed by the prompt", f"{_SAID}<channel|>", "Yes.", "", "Yes.", False),
    ("empty", "", f"{_SAID}<channel|>Yes.", "", "Yes.", False), ("none", "", "Yes.", "", "Yes.", False),
    ("without its name", "", "<|channel>Hm.<channel|>Yes.", "Hm.", "Yes.", False),
    ("behind content", "", f"So. {_SAID}Hm.<channel|>Yes.", "Hm.", "So. Yes.", False),
    ("cut", "", f"{_SAID}Hm", "Hm", "", True),
    ("cut in the second", "", f"{_SAID}Hm.<channel|>Yes.{_SAID}O", "Hm.\n\nO", "Yes.", True),
]  # fmt: skip
_THINKS, _SAYS = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_NEXT = "<|start|>assistant"
CHANNELS: list[Example] = [
    ("marked", _NEXT, f"{_THINKS}Hm.<|end|>{_NEXT}{_SAYS}Yes.<|return|>", "Hm.", "Yes.", False),
    (
        "two of them", _NEXT, f"{_THINKS}Hm.<|end|>{_NEXT}{_THINKS}Oh.<|end|>{_NEXT}{_SAYS}Yes.", "Hm.\n\nOh.",
        "Yes.", False,
    ),
    ("none", _NEXT, f"{_SAYS}Yes.<|return|>", "", "Yes.", False),
    ("a preamble", _NEXT, f"<|channel|>commentary<|message|>So.<|end|>{_NEXT}{_SAYS}Yes.", "", "So.\n\nYes.", False),
    ("without a channel", _NEXT, "<|message|>Yes.<|return|>", "", "Yes.", False),
    ("no marks at all", _NEXT, "Yes.", "", "Yes.", False), ("cut", _NEXT, f"{_THINKS}Hm", "Hm", "", True),
    ("cut behind it", _NEXT, f"{_THINKS}Hm.<|end|>", "Hm.", "", False),
    ("cut in a header", _NEXT, f"{_THINKS}Hm.<|end|>{_NEXT}<|channel|>fin", "Hm.", "", False),
    ("cut in the content", _NEXT, f"{_THINKS}Hm.<|end|>{_NEXT}{_SAYS}Ye", "Hm.", "Ye", False),
]  # fmt: skip

FAMILIES = {
    "<think>": THINK, "[THINK]": BRACKETS, "<|START_THINKING|>": COHERE, "<|channel>": GEMMA,
    "<|channel|><|message|>": CHANNELS,
}  # fmt: skip
"""By what is in the family's template."""
CASES = [(mark, *example) for mark, examples in FAMILIES.items() for example in examples]


@pytest.mark.parametrize(("template", "arguments"), [
    ("{% if enable_thinking is false %}<think></think>{% endif %}", {"enable_thinking": False}),
    ("{%- if thinking and x %}<think>{% endif %}", {"thinking": False}),
    ("{% if message.thinking is defined %}<think>{{ message.thinking }}{% endif %}", {}),
    ("{% if 'thinking' in message %}<think>{% endif %}", {}),
    ("{{ thinking_budget }}<seed:think>", {"thinking_budget": 0}),
    ("{% if reasoning_effort not in ['high', 'no_think'] %}", {"reasoning_effort": "no_think"}),
    ("{%- if reasoning_effort not in ['none', 'high'] %}", {"reasoning_effort": "none"}), # Mistral Small 4's
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
    for any_word in ("not in [1, 2]", "in ['low', 'minimal']"):  # as it is, where none is refused
        assert known_efforts(f"{{% if reasoning_effort {any_word} %}}{{% endif %}}") is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_reasoning_is_taken_apart(case):
    template, _, prompt, text, *expected = case
    notation = Notation.of(template)
    for pieces in ([text], list(text)):
        parser = AnswerParser(notation, inside=notation.start(f"user{prompt}") == "inside")
        parts = [part for piece in pieces for part in parser.push(piece)]
        answer = Result.of(parts + parser.finish())
        assert [answer.reasoning, answer.text, parser.inside] == expected
