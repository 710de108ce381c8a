"""Requests of programs that people point at such a server are answered in the shape that these programs read."""

import json

import pytest
from helpers import scripted
from helpers.asking import begun
from helpers.recorded import MESSAGES_AGENT, REQUESTS

DOORS = {
    "/v1/chat/completions": ("chat.completion", "chat.completion.chunk"),
    "/v1/completions": ("text_completion", "text_completion"),
}
ENDS = {"stop", "length", "tool_calls"}


@pytest.fixture(scope="module")
def server(serve_all, tmp_path_factory):
    """A server whose model reasons and calls tools, with room for an agent's prompt."""
    path = scripted.write(tmp_path_factory.mktemp("model"), "<think>", "<tool_call>")
    return serve_all(path, n_ctx=3072, parallel=2)


def send(server, path, headers, body):
    """The status, and what comes: JSON, or the data of each event."""
    with begun(server, path, json.dumps(body), **headers) as response:
        text = response.read().decode()
    if not response.headers["content-type"].startswith("text/event-stream"):
        return response.status, json.loads(text)
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return response.status, [line if line == "[DONE]" else json.loads(line) for line in lines]


def check_completions(path, body, told):
    whole, chunk = DOORS[path]
    if not body["stream"]:
        assert told["object"] == whole
        assert told["choices"][0]["finish_reason"] in ENDS
        assert told["usage"]["completion_tokens"] > 0
        return
    assert told.pop() == "[DONE]"
    assert {each["object"] for each in told} == {chunk}
    if "stream_options" in body:
        usage = told.pop()
        assert (usage["choices"], usage["usage"]["completion_tokens"] > 0) == ([], True)
    if whole == "chat.completion":
        assert told[0]["choices"][0]["delta"]["role"] == "assistant"
    assert told[-1]["choices"][0]["finish_reason"] in ENDS


def check_messages(body, told):
    """A message, or events from its start to its stop, the blocks between them."""
    if not body.get("stream"):
        found = told["type"], told["role"], told["stop_reason"]
        assert found == ("message", "assistant", "max_tokens")
        return
    kinds = [each["type"] for each in told]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") > 0
    assert told[-2]["usage"]["output_tokens"] > 0


def check_response(body, told):
    """Events in their order, the response in the first and the last."""
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert told[0]["type"] == "response.created"
    last = told[-1]
    assert last["type"] in ("response.completed", "response.incomplete")
    assert last["response"]["output"]
    assert last["response"]["tools"] == [t for t in body["tools"] if t["type"] != "web_search"]


@pytest.mark.parametrize(("path", "headers", "body"), [each[1:] for each in REQUESTS],
                         ids=[each[0] for each in REQUESTS])  # fmt: skip
def test_it_is_answered(server, path, headers, body):
    status, told = send(server, path, headers, body)
    assert status == 200, told
    if path in DOORS:
        check_completions(path, body, told)
    elif "messages" in path:
        check_messages(body, told)
    else:
        check_response(body, told)


def test_an_agents_prompt_is_counted(server):
    body = {key: value for key, value in MESSAGES_AGENT["a turn"].items() if key != "max_tokens"}
    status, told = send(server, "/v1/messages/count_tokens?beta=true", {"x-api-key": "none"}, body)
    assert (status, told["input_tokens"] > 100) == (200, True)


def test_a_line_that_changes_with_each_request_is_no_part_of_the_prompt(server):
    """An agent's note to its own service stands before all else: with it, nothing of the prompt could be kept."""
    body = {**MESSAGES_AGENT["a turn"], "max_tokens": 8, "stream": False}
    note, *rest = body["system"]
    first = send(server, "/v1/messages", {}, body)[1]
    other = {**note, "text": note["text"].replace("1a2b3", "99999")}
    again = send(server, "/v1/messages", {}, {**body, "system": [other, *rest]})[1]
    n = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
    assert again["usage"]["cache_read_input_tokens"] == n - 1
    assert again["content"] == first["content"]
