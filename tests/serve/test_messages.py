"""Anthropic's Messages as its own client sees them."""

from functools import partial
from itertools import groupby

import pytest
from helpers import asking, scripted
from helpers.asking import text_of

from pyspec.serve.messages import MessagesBody

anthropic = pytest.importorskip("anthropic", reason="the extra [test] is not installed")

TOOL = {"name": "add", "description": "Adds.", "input_schema": scripted.DIGIT}
TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "one and one?"}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "I add."},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"n": 1}},
        {"type": "tool_use", "id": "c2", "name": "add", "input": {"n": 2}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": "2"},
        {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "3"}]},
        {"type": "text", "text": "And now?"},
    ]},
]  # fmt: skip


@pytest.fixture
def client(server, anthropic_of):
    return anthropic_of(server)


def asked(messages="go", says=None, **options):
    """What to ask; says: what the model is made to say."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    options = {"max_tokens": 200, **options}
    if says is not None:
        options["extra_body"] = {"grammar": scripted.script(says)}
    return {"model": "tiny", "messages": messages, **options}


def ask(client, messages="go", says=None, **options):
    return client.messages.create(**asked(messages, says, **options))


def chat(server, messages, **options):
    asked = {"messages": messages, "max_tokens": 16, **options}
    return text_of(asking.ask(server, "/v1/chat/completions", **asked))


def test_a_text_is_answered_as_in_a_chat(client, server):
    answer = ask(client, max_tokens=16)
    (block,) = answer.content
    assert block.text == chat(server, [{"role": "user", "content": "go"}])
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 16
    assert answer.speculation["verification"] == "strict"


def test_blocks_are_the_messages_of_a_chat(client, server):
    begin = {"role": "system", "content": "You add.\nBe short."}
    messages = [begin, *scripted.ADDED, {"role": "user", "content": "And now?"}]
    system = [{"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}}]
    system.append({"type": "text", "text": "Be short."})
    answer = ask(client, TURNS, max_tokens=16, tools=[TOOL], system=system)
    function = {"name": "add", "description": "Adds.", "parameters": scripted.DIGIT}
    said = chat(server, messages, tools=[{"type": "function", "function": function}])
    assert answer.content[0].text == said


def test_what_has_no_room_is_counted_and_refused_in_words_that_clients_know(client):
    """An agent counts to know whether there is room; the error has both numbers."""
    turns = asked("x" * 3000)["messages"]
    counted = client.messages.count_tokens(model="tiny", messages=turns).input_tokens
    assert 3000 <= counted < 3100
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, turns)
    said = refused.value.body["error"]["message"]
    assert said == f"prompt is too long: {counted} tokens > 1024 maximum"


def test_a_count_asks_for_no_answer(client, monkeypatch):
    """A last turn of the model's is counted, no grammar is made, and texts far too long are not made tokens of."""
    monkeypatch.setattr("pyspec.serve.service.check_constraint", None)
    monkeypatch.setattr("pyspec.text.answer.Speech.shape", None)
    own = [*asked()["messages"], {"role": "assistant", "content": "I"}]
    form = {"format": {"type": "json_schema", "schema": scripted.DIGIT}}
    options = {"model": "tiny", "tools": [TOOL], "output_config": form}
    assert client.messages.count_tokens(messages=own, **options).input_tokens > 50
    many = [{"role": "user", "content": "x"}] * 1500
    assert client.messages.count_tokens(messages=many, model="tiny").input_tokens >= 1500


def test_a_stop_sequence_is_named(client, script_all):
    answer = ask(client, says="one two three", stop_sequences=["wo", "three"])
    assert answer.content[0].text == "one t"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "wo")
    assert ask(client, says="one", stop_sequences=["wo"]).stop_reason == "end_turn"


@pytest.fixture
def thinker(serve, anthropic_of, tmp_path):
    """A client of a model whose template begins to think."""
    return anthropic_of(serve(scripted.write(tmp_path, behind=scripted.THINKS)))


def test_thinking_may_be_turned_off(thinker):
    """A begun answer has none either."""
    on = ask(thinker, says="Hm.</think>Yes.")
    off = ask(thinker, says="Hm.</think>Yes.", thinking={"type": "disabled"})
    thought, text = on.content
    assert (thought.type, thought.thinking, text.text) == ("thinking", "Hm.", "Yes.")
    for answer in (off, ask(thinker, BEGUN, max_tokens=8)):
        assert [block.type for block in answer.content] == ["text"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_tool_that_must_be_used(client, choice):
    choice = {**choice, "disable_parallel_tool_use": True}
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    answer = ask(client, tools=[TOOL, hosted], tool_choice=choice)
    (block,) = answer.content
    assert (block.type, block.name, answer.stop_reason) == ("tool_use", "add", "tool_use")
    assert set(block.input) == {"n"}


def test_events_come_in_the_order_that_clients_need(client, script_all):
    given = asked(says="<think>Hm.</think>\n\nYes. " + scripted.CALL, tools=[TOOL])
    whole = client.messages.create(**given)
    with client.messages.stream(**given) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    raw = list(client.messages.create(**given, stream=True))
    once = [kind for kind, _ in groupby(event.type for event in raw)]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert once == ["message_start", *block * 3, "message_delta", "message_stop"]
    assert [e.index for e in raw if e.type == "content_block_start"] == [0, 1, 2]
    assert {"thinking", "text", "input_json", "message_stop"} <= set(kinds)
    shown = {"content": {"__all__": {"id"}}, "id": True, "usage": True, "speculation": True}
    assert final.model_dump(exclude=shown) == whole.model_dump(exclude=shown)
    assert [b.type for b in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == {"n": 1}
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_no_token_may_be_asked_for(client):
    """Clients ask so where a service is to read a prompt before it is needed; it is read then."""
    prompt = "go there, and there, and everywhere"
    none = ask(client, prompt, max_tokens=0)
    assert (none.content, none.stop_reason, none.usage.output_tokens) == ([], "max_tokens", 0)
    raw = list(client.messages.create(**asked(prompt, max_tokens=0), stream=True))
    assert [e.type for e in raw] == ["message_start", "message_delta", "message_stop"]
    usage = ask(client, prompt, max_tokens=1).usage
    assert usage.cache_read_input_tokens > len(prompt)
    assert usage.input_tokens == 1


def test_a_call_that_failed_is_told_as_one():
    turns = [*TURNS[:2], {"role": "user", "content": [dict(each) for each in TURNS[2]["content"]]}]
    turns[2]["content"][0]["is_error"] = True
    chats = record_of(messages=turns).messages
    assert [m["content"] for m in chats if m["role"] == "tool"] == ["The call failed:\n2", "3"]


record_of = partial(asking.record_of, MessagesBody, messages=TURNS)


def test_what_another_server_ran_is_left_out():
    """Blocks of a history with Anthropic's own tools, or those of MCP: the model's words say what came of them."""
    ran = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "mcp_tool_use", "id": "s2", "name": "x", "server_name": "y", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "s2", "is_error": False, "content": "r"},
        {"type": "bash_code_execution_tool_result", "tool_use_id": "s3", "content": {"stdout": "x", "return_code": 0}},
        {"type": "redacted_thinking", "data": "x"},
    ]  # fmt: skip
    own = {"role": "assistant", "content": [*ran, {"type": "text", "text": "So it is."}]}
    made = record_of(messages=[TURNS[0], own, {"role": "user", "content": "on"}]).messages
    assert [message["content"] for message in made] == ["one and one?", "So it is.", "on"]


@pytest.mark.parametrize("source", [
    {"type": "text", "media_type": "text/plain", "data": "Words."},
    {"type": "content", "content": "Words."},
    {"type": "content", "content": [{"type": "text", "text": "Words."}]},
])  # fmt: skip
def test_a_document_of_text_is_read(source):
    document = {"type": "document", "source": source}
    for about, text in (({}, "Words."), ({"title": "T", "context": "C"}, "T\nC\nWords.")):
        said = {"role": "user", "content": [{**document, **about}]}
        (turn,) = record_of(messages=[said]).messages
        assert turn["content"] == text


def test_a_format_by_the_name_that_betas_had(client):
    form = {"type": "json_schema", "schema": scripted.DIGIT}
    record = record_of(output_format=form)
    assert record.language == record_of(output_config={"format": form}).language is not None
    body = {"messages": BEGUN, "extra_body": {"output_format": form}}
    assert client.messages.count_tokens(model="tiny", **body).input_tokens > 0


LATER = {"name": "later", "input_schema": scripted.DIGIT, "defer_loading": True}
FOUND = {"role": "user", "content": [
    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "tool_reference", "tool_name": "later"}]},
    {"type": "text", "text": "Tool loaded."},
]}  # fmt: skip


def test_a_deferred_tool_is_there_once_the_client_has_found_it():
    """Before that the model is not told of it; a search that the server would make finds all at once."""
    tools = [TOOL, LATER, {**LATER, "name": "never"}]
    assert [tool["name"] for tool in record_of(tools=tools).tools] == ["add"]
    record = record_of(tools=tools, messages=[*TURNS[:2], FOUND])
    assert [tool["name"] for tool in record.tools] == ["add", "later"]
    results = [m["content"] for m in record.messages if m["role"] == "tool"]
    assert results == ["later can be called now."]
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert len(record_of(tools=[*tools, search]).tools) == 3


def test_a_call_that_was_cut_is_not_made(client, script_all):
    """Its words are text. A stream says so as Anthropic's own do: a block has begun, with a part of its input."""
    how = asked(says=scripted.CALL, tools=[TOOL], max_tokens=45)
    answer = client.messages.create(**how)
    assert ([b.type for b in answer.content], answer.stop_reason) == (["text"], "max_tokens")
    how["tool_choice"] = {"type": "any"}
    with client.messages.stream(**how) as stream:
        answer = stream.get_final_message()
    (block,) = answer.content
    assert (block.type, block.input, answer.stop_reason) == ("tool_use", {}, "max_tokens")
    assert client.messages.create(**how).content == []


BEGUN = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "I said: "}]


def test_an_answer_goes_on_where_it_was_begun(client, server):
    prompt = scripted.prompt("go") + "I said: "
    text = text_of(asking.ask(server, "/v1/completions", prompt=prompt, max_tokens=16))
    whole = ask(client, BEGUN, max_tokens=16)
    assert whole.content[0].text == text
    with client.messages.stream(**asked(BEGUN, max_tokens=16)) as stream:
        assert "".join(stream.text_stream) == text
    assert chat(server, BEGUN) == text
    counted = client.messages.count_tokens(messages=BEGUN, model="tiny").input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
