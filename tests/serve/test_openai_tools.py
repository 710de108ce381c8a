"""Tools and forms of answers as OpenAI's own client asks for them."""

import json

import pytest
from helpers.asking import chat

openai = pytest.importorskip("openai", reason="the extra [test] is not installed")


@pytest.fixture(scope="module")
def server(serve_all):
    return serve_all()


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "maximum": 99, "minimum": 0},
        "ok": {"type": "boolean"},
    },
    "required": ["n", "ok"],
    "additionalProperties": False,
}


TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


def test_tool_that_may_be_called(client):
    answer = chat(client, tools=[TOOL], max_tokens=10).choices[0]
    assert (answer.message.tool_calls, len(answer.message.content) > 0) == (None, True)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    answer = client.chat.completions.create(
        model="tiny", messages=messages, tools=[TOOL], max_tokens=4
    )
    assert answer.usage.completion_tokens == 4


FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "n",
        "schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
    },
}


def test_tools_beside_a_response_format(client):
    """As the Agents SDK, pydantic-ai and LangChain send it: the answer is of that form, or a call; a forced call is a call."""
    options = {"tools": [TOOL], "response_format": FORM, "max_tokens": 300}
    (choice,) = chat(client, **options).choices
    if choice.message.tool_calls:
        assert choice.message.tool_calls[0].function.name == TOOL["function"]["name"]
    else:
        assert set(json.loads(choice.message.content)) == {"n"}
    one = {"tool_choice": "required", "parallel_tool_calls": False}
    (forced,) = chat(client, **options, **one).choices
    assert forced.finish_reason == "tool_calls"


def test_allowed_tools(client):
    other = {"type": "function", "function": {**TOOL["function"], "name": "other"}}

    def choice(name):
        allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
        return {"type": "allowed_tools", "allowed_tools": allowed}

    options = {"tools": [TOOL, other], "max_tokens": 300}
    (found,) = chat(client, **options, tool_choice=choice("other")).choices
    assert found.message.tool_calls[0].function.name == "other"
    with pytest.raises(openai.BadRequestError):
        chat(client, **options, tool_choice=choice("none of them"))
