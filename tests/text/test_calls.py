"""Calls of tools: each family's right ones are calls, and everything else is content."""

import json
import re
from dataclasses import replace

import pytest
from helpers.call_examples import FAMILIES, FUNCTIONS
from hypothesis import given
from hypothesis import strategies as st

from pyspec.text import notation
from pyspec.text.notation import THINK, Notation
from pyspec.text.parser import AnswerParser
from pyspec.text.parts import Result
from pyspec.text.stream import types_of

CASES = [(family, *example) for family, examples in FAMILIES.items() for example in examples]


def notation_of(family):
    if family == "GPT_OSS":
        return Notation(channels=True)
    return Notation(calls=getattr(notation, family))


def parts_of(pieces, spoken, **asked):
    parser = AnswerParser(spoken, functions=FUNCTIONS, name="x", **asked)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return parts + parser.finish()


def whole(text, spoken=None):
    return Result.of(parts_of([text], spoken or Notation()))


def functions_of(answer):
    return [call["function"] for call in answer.calls]


def told(answer):
    return answer.text, [(f["name"], json.loads(f["arguments"])) for f in functions_of(answer)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_answers_are_taken_apart(case):
    family, _, text, *expected = case
    for pieces in ([text], list(text)):
        assert told(Result.of(parts_of(pieces, notation_of(family)))) == tuple(expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_calls_are_content_where_there_are_no_tools(case):
    """Nothing is called that cannot be, and of families without channels every character stays."""
    family, _, text, *_ = case
    parser = AnswerParser(notation_of(family))
    answer = Result.of(parser.push(text) + parser.finish())
    assert answer.calls == []
    assert family == "GPT_OSS" or answer.text == text


def test_arguments_come_as_they_are_written():
    parser = AnswerParser(Notation(), functions=FUNCTIONS)
    begun = parser.push('<tool_call>{"name": "weather", "arguments": {"ci')
    assert [(part.kind, part.text) for part in begun] == [
        ("call", "weather"),
        ("arguments", '{"ci'),
    ]
    assert [part.text for part in parser.push('ty": "P')] == ['ty": "P']


@pytest.mark.parametrize(("written", "meant"), [
    (r'"{\"city\": \"Rome\"}"', {"city": "Rome"}), ("null", {}),
    (r"{'city': 'L\'Aquila\u0021', hourly: True}", {"city": "L'Aquila!", "hourly": True}),
    (r"""{"city": "C:\Users\d+ L\'A"}""", {"city": r"C:\Users\d+ L'A"}),
])  # fmt: skip
def test_an_object_may_be_a_text_or_null_or_pythons(written, meant):
    text = f'<tool_call>{{"name": "weather", "arguments": {written}}}</tool_call>'
    assert told(whole(text)) == ("", [("weather", meant)])


@pytest.mark.parametrize(("schema", "types"), [
    ({"type": ["string", "null"]}, {"string", "null"}),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
    ({"oneOf": [{"type": "integer"}, True]}, {"integer"}),
])  # fmt: skip
def test_types_of_a_parameter(schema, types):
    assert types_of(schema) == types


def test_text_is_not_held_longer_than_a_mark_may_begin():
    parser = AnswerParser(Notation(), functions=FUNCTIONS)
    assert [part.text for part in parser.push("a < b <tool")] == ["a < b"]
    assert [part.text for part in parser.push("box")] == [" <toolbox"]


def test_a_call_ends_reasoning_and_a_mark_does_not():
    called = '<think>Hm.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    answer = whole(called, Notation(THINK))
    assert (answer.reasoning, told(answer)) == ("Hm.", ("", [("now", {})]))
    answer = whole("<think>No <tool_call> here.</think>Yes.", Notation(THINK))
    assert (answer.reasoning, answer.text) == ("No <tool_call> here.", "Yes.")


def test_ids_are_what_templates_take():
    """Mistral's demand nine letters and digits, Kimi's are the model's own; all are different."""
    made = {}
    for family in FAMILIES:
        text = next(text for _, text, _, calls in FAMILIES[family] if len(calls) == 2)
        made[family] = [call["id"] for call in whole(text, notation_of(family)).calls]
        assert len(set(made[family])) == 2
    assert made["KIMI"] == ["functions.weather:0", "functions.weather:1"]
    assert [len(given) for given in made["MISTRAL"]] == [9, 9]


def test_a_broken_call_is_content_of_the_whole():
    """Streamed it has begun; given as a whole, nothing that cannot be called is a call."""
    text = 'A <tool_call>{"name": "weather", "arguments": {"city"}}</tool_call> B'
    parts = parts_of(list(text), Notation())
    assert [part.text for part in parts if part.kind == "call"] == ["weather"]
    assert told(Result.of(parts)) == (text, [])


ANSWERS = [text for examples in FAMILIES.values() for _, text, *_ in examples]
SPLIT = {word for text in ANSWERS for word in re.split(r"(<[^>]*>|[\[\]{}\":,()\n ])", text)} - {""}
WORDS = st.sampled_from(sorted(SPLIT | {"<think>", "</think>", "\\", "'", "x" * 300}))
FURTHER = ("<|tool_call>call:", "<|tool_call_start|>", "<|channel>", "<|tools_prefix|>")
NOTATIONS = [
    *(notation_of(family) for family in FAMILIES),
    *(replace(Notation(THINK), calls=notation_of(family).calls) for family in FAMILIES),
    *map(Notation.of, FURTHER),
]  # fmt: skip


@given(
    st.lists(WORDS | st.text(max_size=3), max_size=30), st.sampled_from(NOTATIONS), st.booleans()
)
def test_any_split_gives_the_same_answer(words, spoken, inside):
    text = "".join(words)
    made = [Result.of(parts_of(p, spoken, inside=inside)) for p in (words, list(text), [text])]
    assert made[0] == made[1] == made[2]


@given(st.lists(WORDS, max_size=30), st.sampled_from(NOTATIONS))
def test_calls_are_objects_and_parts_are_in_order(words, spoken):
    parts = parts_of(words, spoken)
    for function in functions_of(Result.of(parts)):
        assert function["name"]
        assert isinstance(json.loads(function["arguments"]), dict)
    begun = -1
    for part in parts:
        begun += part.kind == "call"
        assert part.kind in ("content", "reasoning") or part.index == begun


@given(st.text())
def test_plain_text_stays(text):
    parser = AnswerParser(Notation(THINK), functions=FUNCTIONS)
    assert Result.of(parser.push(text) + parser.finish()) == Result(text=text)


LONG = ['{"a":' * 20_000, "[" * 40_000, "<tool_call>" * 10_000, "\n" * 40_000, "<" * 40_000]


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("spoken", NOTATIONS[:9], ids=[*FAMILIES, "think"])
def test_length_and_depth_do_no_harm(text, spoken):
    """Tens of thousands of brackets, marks or spaces, in small pieces and at once, neither recurse nor take a square of time."""
    text = f'<tool_call>{{"name": "weather", "arguments": {text}'
    for size in (7, len(text)):
        pieces = (text[i : i + size] for i in range(0, len(text), size))
        assert Result.of(parts_of(pieces, spoken)).calls == []
