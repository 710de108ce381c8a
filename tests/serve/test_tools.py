"""Tools of Responses beside plain functions: those of a namespace, and custom ones, which take a text."""

import json
from functools import partial

import pytest
from helpers import asking, scripted
from helpers.scripted import call

from pyspec.errors import InputError
from pyspec.serve.apis.responses import ResponsesBody, messages_of

SCHEMA = {
    "type": "object", "properties": {"path": {"enum": ["a", "b"]}}, "required": ["path"],
    "additionalProperties": False,
}  # fmt: skip
READ = {"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA}
FORM = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": FORM}
FILES = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [READ, PATCH]}
TEXT = '*** Begin Patch\n+a = "ö"\n*** End Patch'


@pytest.fixture(scope="module")
def server(serve_all, tmp_path_factory):
    path = scripted.write(tmp_path_factory.mktemp("model"), "<think>", "<tool_call>")
    return serve_all(path, n_ctx=2048)


def ask(client, says=None, **options):
    """A response; says: what the model is made to say."""
    if says is not None:
        options["extra_body"] = {"grammar": scripted.script(says)}
    options = {"model": "tiny", "input": "go", "max_output_tokens": 400, **options}
    return client.responses.create(**options)


record_of = partial(asking.record_of, ResponsesBody, input="go")


def test_the_model_knows_them_as_functions():
    plain, patch, read, inner = record_of(tools=[READ, PATCH, FILES]).tools
    assert plain == {key: value for key, value in READ.items() if key != "type"}
    assert (patch["name"], patch["parameters"]["required"]) == ("apply_patch", ["input"])
    assert patch["description"] == "Edits.\n\nThe input's form, in lark:\nstart: /x/"
    assert (read["name"], read["parameters"]) == ("mcp__files__read", SCHEMA)
    assert inner["name"] == "mcp__files__apply_patch"


@pytest.mark.parametrize(("tools", "choice", "wanted"), [
    ([PATCH], {"type": "custom", "name": "apply_patch"}, "apply_patch"),
    ([FILES], {"type": "function", "name": "read"}, "mcp__files__read"),
    ([READ, FILES], "required", "required"),
])  # fmt: skip
def test_one_of_them_may_be_wanted(tools, choice, wanted):
    assert record_of(tools=tools, tool_choice=choice).tool_choice == wanted


def test_allowed_ones_are_named_as_the_client_knows_them():
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]}  # fmt: skip
    (tool,) = record_of(tools=[READ, PATCH], tool_choice=allowed).tools
    assert tool["name"] == "apply_patch"


def test_a_call_of_a_custom_tool_has_its_text(client, script_all):
    text = TEXT.replace("ö", "o")
    says = call("apply_patch", input=text)
    answer = ask(client, says, tools=[PATCH, FILES])
    (item,) = answer.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", text)
    assert item.id.startswith("ctc_")
    assert [tool.type for tool in answer.tools] == ["custom", "namespace"]
    events = list(ask(client, says, tools=[PATCH, FILES], stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        "created", "in_progress", "output_item.added", "custom_tool_call_input.delta",
        "custom_tool_call_input.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert events[2].item.input == ""
    assert events[3].delta == events[4].input == events[5].item.input == text


def test_a_call_in_a_namespace_names_it(client, script_all):
    says = call("mcp__files__read", path="a")
    (item,) = ask(client, says, tools=[FILES]).output
    assert (item.type, item.namespace, item.name) == ("function_call", "mcp__files", "read")
    assert json.loads(item.arguments) == {"path": "a"}
    events = list(ask(client, says, tools=[FILES], stream=True))
    (done,) = (e for e in events if e.type == "response.function_call_arguments.done")
    assert done.name == "read"
    (added,) = (e.item for e in events if e.type == "response.output_item.added")
    assert (added.namespace, added.name) == ("mcp__files", "read")


def test_calls_and_outputs_go_back_into_the_history():
    items = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": TEXT},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."},
        {"type": "function_call", "call_id": "c2", "namespace": "mcp__files", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]},
    ]  # fmt: skip
    first, done, second, read = messages_of(items, None)
    function = first["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("apply_patch", {"input": TEXT})
    assert done == {"role": "tool", "tool_call_id": "c1", "content": "Done."}
    assert second["tool_calls"][0]["function"]["name"] == "mcp__files__read"
    assert read["content"] == "x"


def test_a_text_that_was_cut_is_incomplete(client, script_all):
    says = call("apply_patch", input="x" * 200)
    answer = ask(client, says, tools=[PATCH], max_output_tokens=90)
    (item,) = answer.output
    assert item.type == "custom_tool_call"
    assert item.status == answer.status == "incomplete"
    assert "xxx" in item.input


@pytest.mark.parametrize("kind", ["local_shell", "shell", "apply_patch"])
def test_a_tool_that_only_openais_models_know_is_refused(kind):
    with pytest.raises(InputError, match=f"'{kind}'.*send a function"):
        record_of(tools=[{"type": kind}])


SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds.",
          "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}  # fmt: skip


def test_a_search_for_tools_is_the_clients_and_what_it_finds_can_be_called(client, script_all):
    (item,) = ask(client, call("tool_search", query="files"), tools=[SEARCH]).output
    found = item.model_dump(exclude_unset=True)
    assert (found["type"], found["execution"]) == ("tool_search_call", "client")
    assert found["arguments"] == {"query": "files"}
    output = {
        "type": "tool_search_output", "call_id": found["call_id"], "status": "completed",
        "execution": "client", "tools": [FILES],
    }  # fmt: skip
    turns = [{"role": "user", "content": "go"}, found, output]
    record = record_of(tools=[SEARCH], input=turns)
    assert [tool["name"] for tool in record.tools][:2] == ["tool_search", "mcp__files__read"]
    assert record.tools[0]["parameters"] == SEARCH["parameters"]
    asked, told = record.messages[1:]
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"query": "files"}
    found = "Tools that can be called now: mcp__files__read, mcp__files__apply_patch."
    assert told["content"] == found
    (item,) = ask(client, call("mcp__files__read", path="a"), tools=[SEARCH], input=turns).output
    assert (item.namespace, item.name) == ("mcp__files", "read")


def test_what_another_server_ran_is_left_out():
    """Its tools, a shell in its container, and their items: the model's words say what came of them."""
    container = {"type": "shell", "environment": {"type": "container_auto"}}
    searched = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {}}
    tools = [{"type": "web_search"}, {"type": "tool_search"}, container, READ]
    turns = [{"role": "user", "content": "go"}, searched, {"role": "user", "content": "on"}]
    record = record_of(tools=tools, input=turns)
    assert [tool["name"] for tool in record.tools] == ["read"]
    assert [message["content"] for message in record.messages] == ["go", "on"]
