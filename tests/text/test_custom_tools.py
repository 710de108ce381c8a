"""Custom tools of chats, as functions of one text: what the model is told, what it wrote, and what clients read of it."""

import json

import pytest

from pyspec.engine.answer import Answer
from pyspec.engine.options import AnswerOptions
from pyspec.errors import InputError
from pyspec.requests.bodies import read_body
from pyspec.text.answer import AnswerReader
from pyspec.text.messages import DeltaWriter, text_of_call
from pyspec.text.parts import AnswerPart, call_of

FORM = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Edits.", "format": FORM}}
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
SAID = {"role": "user", "content": "go"}


def record_of(*messages, **body):
    data = json.dumps({"messages": [SAID, *messages], **body}).encode()
    (record,) = read_body("/v1/chat/completions", data).records()
    return record


def test_the_model_knows_a_custom_tool_as_a_function_of_one_text():
    record = record_of(tools=[PATCH, READ])
    patch, read = record.tools
    assert (patch["name"], patch["parameters"]["required"]) == ("patch", ["input"])
    assert patch["description"] == "Edits.\n\nThe input's form, in lark:\nstart: /x/"
    assert read == READ["function"]
    assert record.custom == ["patch"]


@pytest.mark.parametrize("form", [None, {"type": "text"}])
def test_a_tool_of_any_text_needs_no_more_than_a_name(form):
    tool = {"type": "custom", "custom": {"name": "note", **({"format": form} if form else {})}}
    (function,) = record_of(tools=[tool]).tools
    assert (function["name"], function["description"]) == ("note", "")


@pytest.mark.parametrize(
    "tool", [{"type": "custom"}, {"type": "custom", "custom": {}}, {"type": "web_search"}]
)
def test_a_tool_without_a_name_is_refused(tool):
    body = json.dumps({"messages": [SAID], "tools": [tool]}).encode()
    with pytest.raises((InputError, KeyError)):
        read_body("/v1/chat/completions", body).records()


def test_a_history_with_calls_of_custom_tools_is_read():
    """As calls of the functions that stand for them; calls of functions beside them stay."""
    custom = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": 'a"ö'}}
    plain = {"id": "2", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "1", "content": "Done."}
    turn = {"role": "assistant", "content": None, "tool_calls": [custom, plain]}
    _, told, done = record_of(turn, result).messages
    first, second = told["tool_calls"]
    function = {"name": "patch", "arguments": '{"input": "a\\"ö"}'}
    assert first == {"id": "1", "type": "function", "function": function}
    assert (second, done) == (plain, result)


def test_the_same_tools_in_another_form_are_another_request():
    """What was answered to the one is no answer to the other: calls have other fields."""
    custom = record_of(tools=[PATCH])
    functions = [{"type": "function", "function": tool} for tool in custom.tools]
    other = record_of(tools=functions)
    assert custom.tools == other.tools
    assert custom.sha256 != other.sha256


@pytest.mark.parametrize(("arguments", "text"), [
    ('{"input": 5}', "5"), ('{"input": {"a": "ö"}}', '{"a": "ö"}'), ('{"other": "x"}', '{"other": "x"}'),
    ('{"input": "x', '{"input": "x'), ('{"input": "a\\ud83d"}', "a\ufffd"),
])  # fmt: skip
def test_whatever_the_model_writes_is_a_text_that_can_be_sent(arguments, text):
    assert text_of_call(arguments) == text


def test_the_result_of_a_record_has_calls_in_the_form_of_their_tools():
    """So batches, whose output is made of results alone, have it."""
    record = record_of(tools=[PATCH])
    reader = AnswerReader(lambda _: b"")
    answer = Answer(0, record, [1], AnswerOptions(), reader, 1)
    answer.parts = [AnswerPart("call", "patch", 0, "1"), AnswerPart("arguments", '{"input": "x"}')]
    answer.parts += [AnswerPart("call", "read", 1, "2"), AnswerPart("arguments", "{}", 1)]
    call, other = answer.result().calls
    assert call == {"id": "1", "type": "custom", "custom": {"name": "patch", "input": "x"}}
    assert other == call_of("2", "read", "{}")


CALL = AnswerPart("call", "patch", 1, "7")
PATCHED = {"index": 1, "id": "7", "type": "custom", "custom": {"name": "patch", "input": "ab"}}
ARGUMENTS = [AnswerPart("arguments", '{"input": "a', 1), AnswerPart("arguments", 'b"}', 1)]
READS = AnswerPart("call", "read", 2, "8")


@pytest.mark.parametrize(("parts", "told"), [
    ([CALL, *ARGUMENTS], [PATCHED]),
    ([CALL, *ARGUMENTS, READS], [PATCHED, READS.delta()["tool_calls"][0]]),
    ([CALL, *ARGUMENTS, AnswerPart("call", "patch", 2, "8")], [
        PATCHED, {"index": 2, "id": "8", "type": "custom", "custom": {"name": "patch", "input": ""}},
    ]),
])  # fmt: skip
def test_a_call_of_a_custom_tool_comes_whole_before_what_follows(parts, told):
    deltas = DeltaWriter(["patch"]).write(parts, ended=True)
    assert [call for delta in deltas for call in delta["tool_calls"]] == told


def test_a_call_that_was_cut_is_content_as_in_a_whole_answer():
    parts = [CALL, ARGUMENTS[0], AnswerPart("broken", '{"in')]
    assert DeltaWriter(["patch"]).write(parts, ended=True) == [{"content": '{"in'}]
