"""Custom tools of chats as OpenAI's own client sends them, and gets calls of them."""

import json

import pytest
from helpers import scripted

openai = pytest.importorskip("openai", reason="the extra [test] is not installed")

PATCH = {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
TEXT = '*** Begin\n+a = "o"\n*** End'
NAMED = {"type": "custom", "custom": {"name": "patch"}}


def call(name, **arguments):
    told = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{told}\n</tool_call>"


def ask(client, says=None, turns=(), **options):
    """A chat completion; says: what the model is made to say."""
    if says is not None:
        options["extra_body"] = {"grammar": scripted.script(says)}
    messages = [{"role": "user", "content": "go"}, *turns]
    options = {"max_tokens": 300, "tools": [PATCH, READ], **options}
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def test_a_call_of_a_custom_tool_is_of_its_own_type(client, script_all):
    (choice,) = ask(client, call("patch", input=TEXT)).choices
    (made,) = choice.message.tool_calls
    assert isinstance(made, openai.types.chat.ChatCompletionMessageCustomToolCall)
    assert (made.custom.name, made.custom.input) == ("patch", TEXT)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)


def test_it_is_streamed_as_it_is_whole(client, script_all):
    says = f"{call('patch', input=TEXT)}\n{call('read', path='a')}"
    whole = ask(client, says).choices[0].message.tool_calls
    chunks = [c.choices[0] for c in ask(client, says, stream=True) if c.choices]
    pieces = [p.model_dump(exclude_unset=True) for c in chunks for p in c.delta.tool_calls or ()]
    custom = [piece for piece in pieces if piece["index"] == 0]
    made = {"type": "custom", "custom": {"name": "patch", "input": TEXT}}
    assert custom == [{"index": 0, "id": custom[0]["id"], **made}]
    function = [piece["function"] for piece in pieces if piece["index"] == 1]
    assert "".join(each["arguments"] for each in function) == whole[1].function.arguments
    assert chunks[-1].finish_reason == "tool_calls"


ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize("choice", [NAMED, ALLOWED])
def test_a_custom_tool_may_have_to_be_called(client, choice):
    options = {"tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 900}
    lean = scripted.leaning('"')  # or its text would never end
    (found,) = ask(client, logit_bias=lean, **options).choices
    (made,) = found.message.tool_calls
    assert (made.type, made.custom.name) == ("custom", "patch")


def test_the_next_request_brings_the_call_and_its_result(client, script_all):
    message = ask(client, call("patch", input=TEXT)).choices[0].message
    told = message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Done."}
    answer = ask(client, "Fine.", [told, result], max_tokens=9).choices[0]
    assert answer.message.content == "Fine."


def test_each_choice_has_calls_of_its_own(client, script_all):
    says = call("patch", input=TEXT)
    chunks = [c.choices[0] for c in ask(client, says, n=2, stream=True) if c.choices]
    for index in (0, 1):
        calls = [p for c in chunks if c.index == index for p in c.delta.tool_calls or ()]
        assert "".join(piece.custom["input"] for piece in calls) == TEXT
