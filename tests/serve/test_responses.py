"""OpenAI's Responses as its own client sees them."""

import json

import pytest
from helpers import scripted
from helpers.asking import ask as ask_raw
from helpers.asking import begun

from pyspec.serve.apis.responses import messages_of

openai = pytest.importorskip("openai", reason="the extra [test] is not installed")

TOOL = {"type": "function", "name": "add", "parameters": scripted.DIGIT, "strict": True}


def ask(client, given="go", says=None, **options):
    """A response; says: what the model is made to say."""
    options = {"max_output_tokens": 200, **options}
    if says is not None:
        options["extra_body"] = {"grammar": scripted.script(says)}
    return client.responses.create(model="tiny", input=given, **options)


def chat(client, messages, **options):
    asked = {"model": "tiny", "messages": messages, "max_tokens": 16, **options}
    return client.chat.completions.create(**asked).choices[0]


def test_a_text_is_answered_as_in_a_chat(client):
    answer = ask(client, max_output_tokens=16, store=True)
    said = chat(client, [{"role": "user", "content": "go"}]).message.content
    assert answer.output_text == said
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.output_tokens, answer.store, answer.metadata) == (16, False, {})
    assert answer.usage.total_tokens == answer.usage.input_tokens + 16
    assert answer.speculation["verification"] == "strict"


def test_items_are_the_messages_of_a_chat(client):
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
    answer = ask(client, items, instructions="You add.", tools=[TOOL], max_output_tokens=16)
    tool = {"type": "function", "function": {k: TOOL[k] for k in ("name", "parameters", "strict")}}
    assert answer.output_text == chat(client, messages, tools=[tool]).message.content


def test_what_is_said_twice_is_two_turns():
    said = {"role": "assistant", "content": "a"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    made = messages_of([said, said, call, said], None)
    assert [m["content"] for m in made] == ["a"] * 3
    assert ["tool_calls" in m for m in made] == [False, True, False]


def test_reasoning_is_an_item_of_its_own(client):
    answer = ask(client, says="<think>Hm.</think>\n\nYes.")
    first, second = answer.output
    assert (first.type, first.content[0].text) == ("reasoning", "Hm.")
    assert (second.type, answer.output_text, answer.status) == ("message", "Yes.", "completed")
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens


def test_a_call_is_an_item(client):
    tools = [TOOL, {"type": "web_search"}]
    answer = ask(client, tools=tools, tool_choice="required", parallel_tool_calls=False)
    (call,) = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "add", "completed")
    assert set(json.loads(call.arguments)) == {"n"}
    assert [tool.name for tool in answer.tools] == ["add"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
    again = [{"role": "user", "content": "go"}, call.model_dump(), result]
    assert ask(client, again, tools=[TOOL], max_output_tokens=4).usage.output_tokens == 4


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


def test_a_call_that_was_cut_is_incomplete(client, script_all):
    answer = ask(client, tools=[TOOL], says=scripted.CALL, max_output_tokens=45)
    assert (answer.output[0].status, answer.status) == ("incomplete", "incomplete")
    *_, last = ask(client, tools=[TOOL], says=scripted.CALL, max_output_tokens=45, stream=True)
    assert last.type == "response.incomplete"


def test_an_answer_of_nothing_is_an_empty_message(client):
    answer = ask(client, max_output_tokens=0)
    assert (answer.output[0].type, answer.output_text) == ("message", "")


def test_a_stream_tells_in_itself_that_there_is_no_room(client, server):
    """As OpenAI has it: agents look for the code in the event of the failure, and the client's own class raises the error."""
    with pytest.raises(openai.APIError, match="maximum context length is 1024 tokens"):
        list(ask(client, "x" * 3000, stream=True))
    with begun(server, "/v1/responses", json.dumps({"input": "x" * 3000, "stream": True})) as told:
        lines = [line[6:] for line in told.read().splitlines() if line.startswith(b"data: ")]
    error, failed = map(json.loads, lines)
    assert (error["type"], error["error"]["code"]) == ("error", "context_length_exceeded")
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {key: error[key] for key in ("code", "message")}


@pytest.mark.parametrize(("options", "word"), [
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "store is false"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "'web_search'"),
])  # fmt: skip
def test_a_refusal_names_what_it_is_about(server, options, word):
    """Clients refer to items where they were not told that nothing is stored; a tool of the server's has no name."""
    told = ask_raw(server, "/v1/responses", 400, **{"input": "go", **options})
    assert word in told["error"]["message"]
