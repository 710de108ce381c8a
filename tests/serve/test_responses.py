"""OpenAI's Responses as its own client sees them; their tools beside functions: of a namespace, and custom ones, of a text."""

import json
from functools import partial

import pytest
from helpers import asking, scripted
from helpers.asking import begun
from helpers.scripted import call

from pyspec.serve.responses import ClientTool, ResponsesBody, messages_of

openai = pytest.importorskip("openai", reason="the extra [test] is not installed")

TOOL = {"type": "function", "name": "add", "parameters": scripted.DIGIT, "strict": True}


@pytest.fixture(scope="module")
def server(serve_all, tmp_path_factory):
    """One with room for tools that are told in words."""
    path = scripted.write(tmp_path_factory.mktemp("model"), "<think>", "<tool_call>")
    return serve_all(path, n_ctx=2048)


def ask(client, says=None, **options):
    """A response; says: what the model is made to say."""
    if says is not None:
        options["extra_body"] = {"grammar": scripted.script(says)}
    options = {"model": "tiny", "input": "go", "max_output_tokens": 400, **options}
    return client.responses.create(**options)


def test_a_text_is_answered_as_in_a_chat(client):
    answer = ask(client, max_output_tokens=16, store=True)
    assert answer.output_text == asking.chat(client, "go").choices[0].message.content
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.output_tokens, answer.store, answer.metadata) == (16, False, {})
    assert answer.usage.total_tokens == answer.usage.input_tokens + 16
    assert answer.speculation["verification"] == "strict"


def test_items_are_the_messages_of_a_chat():
    items = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "input_text", "text": "one and one?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "id": "m", "status": "completed",
         "content": [{"type": "output_text", "text": "I add.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"n": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"n": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]},
    ]  # fmt: skip
    messages = [{"role": "system", "content": "You add.\n\nBe short."}, *scripted.ADDED]
    assert messages_of(items, "You add.") == messages


def test_what_is_said_twice_is_two_turns():
    said = {"role": "assistant", "content": "a"}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    made = messages_of([said, said, called, said], None)
    assert [m["content"] for m in made] == ["a"] * 3
    assert ["tool_calls" in m for m in made] == [False, True, False]


def test_a_call_is_an_item(client):
    tools = [TOOL, {"type": "web_search"}]
    answer = ask(client, tools=tools, tool_choice="required", parallel_tool_calls=False)
    (made,) = answer.output
    assert (made.type, made.name, made.status) == ("function_call", "add", "completed")
    assert set(json.loads(made.arguments)) == {"n"}
    assert [tool.name for tool in answer.tools] == ["add"]
    result = {"type": "function_call_output", "call_id": made.call_id, "output": "4"}
    again = [{"role": "user", "content": "go"}, made.model_dump(), result]
    assert ask(client, input=again, tools=[TOOL], max_output_tokens=4).usage.output_tokens == 4


def test_events_come_in_the_order_that_clients_need(client, script_all):
    says = "<think>Hm.</think>\n\nYes. " + scripted.CALL
    events = list(ask(client, tools=[TOOL], says=says, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == "completed"
    once = [kind for kind, before in zip(kinds, [None, *kinds]) if kind != before]
    assert once[2:-1] == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    final = events[-1].response
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [item.model_dump() for item in final.output] == [item.model_dump() for item in done]
    deltas = [e for e in events if e.type.endswith(".delta")]
    for index, text in enumerate(["Hm.", "Yes.", '{"n": 1}']):
        assert "".join(e.delta for e in deltas if e.output_index == index) == text
    whole = ask(client, tools=[TOOL], says=says)
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    dumped = [[i.model_dump(exclude={"id", "call_id"}) for i in x.output] for x in (whole, final)]
    assert dumped[0] == dumped[1]


def test_the_clients_own_stream(client, script_all):
    said = {"grammar": scripted.script("Hi. " + scripted.CALL)}
    asked = {"model": "tiny", "input": "go", "tools": [TOOL], "max_output_tokens": 200}
    with client.responses.stream(**asked, extra_body=said) as stream:
        texts = [e.snapshot for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert texts[-1] == final.output_text == "Hi."
    assert final.output[1].parsed_arguments == {"n": 1}


def test_an_answer_of_nothing_is_an_empty_message(client):
    answer = ask(client, max_output_tokens=0)
    assert (answer.output[0].type, answer.output_text) == ("message", "")


def test_a_stream_tells_in_itself_that_there_is_no_room(client, server):
    """As OpenAI has it: agents look for the code in the event of the failure, and the client's own class raises the error."""
    with pytest.raises(openai.APIError, match="maximum context length is 2048 tokens"):
        list(ask(client, input="x" * 3000, stream=True))
    with begun(server, "/v1/responses", json.dumps({"input": "x" * 3000, "stream": True})) as told:
        lines = [line[6:] for line in told.read().splitlines() if line.startswith(b"data: ")]
    error, failed = map(json.loads, lines)
    assert (error["type"], error["error"]["code"]) == ("error", "context_length_exceeded")
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {key: error[key] for key in ("code", "message")}


@pytest.mark.parametrize(("asked", "word"), [
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "store is false"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "'web_search'"),
    *(({"tools": [{"type": kind}]}, f"'{kind}'") for kind in ("local_shell", "shell", "apply_patch")),
])  # fmt: skip
def test_a_refusal_names_what_it_is_about(server, asked, word):
    """Clients refer to items where they were not told that nothing is stored; a tool of the server's has no name."""
    told = asking.ask(server, "/v1/responses", 400, **{"input": "go", **asked})
    assert word in told["error"]["message"]


# -- tools beside functions ----------------------------------------------------------------------------

SCHEMA = {
    "type": "object", "properties": {"path": {"enum": ["a", "b"]}}, "required": ["path"],
    "additionalProperties": False,
}  # fmt: skip
READ = {"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA}
FORM = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": FORM}
FILES = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [READ, PATCH]}
TEXT = '*** Begin Patch\n+a = "ö"\n*** End Patch'
record_of = partial(asking.record_of, ResponsesBody, input="go")


def test_the_model_knows_them_as_functions():
    plain, patch, read, inner = record_of(tools=[READ, PATCH, FILES]).tools
    assert plain == {key: value for key, value in READ.items() if key != "type"}
    assert (patch["name"], patch["parameters"]["required"]) == ("apply_patch", ["input"])
    assert patch["description"] == "Edits.\n\nThe input's form, in lark:\nstart: /x/"
    assert (read["name"], read["parameters"]) == ("mcp__files__read", SCHEMA)
    assert inner["name"] == "mcp__files__apply_patch"


NAMED = {"type": "custom", "name": "apply_patch"}


@pytest.mark.parametrize(("tools", "choice", "left", "wanted"), [
    ([PATCH], NAMED, ["apply_patch"], "apply_patch"),
    ([FILES], {"type": "function", "name": "read"}, ["mcp__files__read", "mcp__files__apply_patch"], "mcp__files__read"),
    ([READ, PATCH], "required", ["read", "apply_patch"], "required"),
    ([READ, PATCH], {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}, ["apply_patch"], None),
])  # fmt: skip
def test_a_choice_names_them_as_the_client_knows_them(tools, choice, left, wanted):
    record = record_of(tools=tools, tool_choice=choice)
    assert ([tool["name"] for tool in record.tools], record.tool_choice) == (left, wanted)


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


@pytest.mark.parametrize(("says", "kind", "field"), [
    (call("add", n="x" * 200), "function_call", "arguments"),
    (call("apply_patch", input="x" * 200), "custom_tool_call", "input"),
])  # fmt: skip
def test_a_call_that_was_cut_is_incomplete(client, script_all, says, kind, field):
    asked = {"tools": [TOOL, PATCH], "says": says, "max_output_tokens": 90}
    answer = ask(client, **asked)
    (item,) = answer.output
    assert (item.type, item.status, answer.status) == (kind, "incomplete", "incomplete")
    assert "xxx" in getattr(item, field)
    *_, last = ask(client, **asked, stream=True)
    assert last.type == "response.incomplete"


@pytest.mark.parametrize(("arguments", "text"), [
    ('{"input": 5}', "5"), ('{"input": {"a": "ö"}}', '{"a": "ö"}'), ('{"other": "x"}', '{"other": "x"}'),
    ('{"input": "a\\ud83d"}', "a\ufffd"),
])  # fmt: skip
def test_whatever_the_model_writes_is_a_text_that_can_be_sent(arguments, text):
    assert ClientTool(PATCH).item("c", arguments)["input"] == text


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
