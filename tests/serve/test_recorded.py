"""Requests of programs that people point at such a server are answered."""

import json

import pytest
from helpers import scripted
from helpers.asking import ask, begun
from helpers.recorded import MESSAGES_AGENT, REQUESTS


@pytest.fixture(scope="module")
def server(serve_all, tmp_path_factory):
    """A server whose model reasons and calls tools, with room for an agent's prompt."""
    path = scripted.write(tmp_path_factory.mktemp("model"), "<think>", "<tool_call>")
    return serve_all(path, n_ctx=3072, parallel=2)


@pytest.mark.parametrize(("path", "headers", "body"), [each[1:] for each in REQUESTS],
                         ids=[each[0] for each in REQUESTS])  # fmt: skip
def test_it_is_answered(server, path, headers, body):
    with begun(server, path, json.dumps(body), **headers) as response:
        told = response.read().decode()
    assert (response.status, '"error":{' in told) == (200, False), told
    assert told.rstrip().endswith(("[DONE]", "}"))


def test_an_agents_prompt_is_counted(server):
    body = {key: value for key, value in MESSAGES_AGENT["a turn"].items() if key != "max_tokens"}
    assert ask(server, "/v1/messages/count_tokens?beta=true", **body)["input_tokens"] > 100


def test_a_line_that_changes_with_each_request_is_no_part_of_the_prompt(server):
    """An agent's note to its own service stands before all else: with it, nothing of the prompt could be kept."""
    body = {**MESSAGES_AGENT["a turn"], "max_tokens": 8, "stream": False}
    note, *rest = body["system"]
    first = ask(server, "/v1/messages", **body)
    other = {**note, "text": note["text"].replace("1a2b3", "99999")}
    again = ask(server, "/v1/messages", **{**body, "system": [other, *rest]})
    n = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
    assert again["usage"]["cache_read_input_tokens"] == n - 1
    assert again["content"] == first["content"]
