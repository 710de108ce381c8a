"""Refusals as the clients' libraries take them."""

import json
import re

import pytest
from helpers.asking import LEAST, TURN, ask, body, post, record_of

from pyspec.errors import DraftError
from pyspec.serve.responses import ResponsesBody
from pyspec.serve.service import Service


@pytest.mark.parametrize("kind", [
    None,  # as litellm's client of ollama sends none
    "application/octet-stream",  # what aiohttp names then
    "Application/JSON; charset=UTF-8",
])  # fmt: skip
def test_media_types_that_pages_cannot_send_are_taken(server, kind):
    """Or none: a browser's page is known by its other headers. Case does not count, as RFC 9110 has it."""
    assert post(server, b'{"content": "a"}', "/tokenize", **{"Content-Type": kind})[0] == 200


@pytest.mark.parametrize(("path", "field"), [
    ("/v1/completions", "prompt"), ("/api/generate", "prompt"), ("/v1/responses", "input"),
    ("/v1/chat/completions", "messages"),
])  # fmt: skip
def test_a_prompt_over_the_context_is_told_in_words_that_clients_know(server, path, field):
    """Litellm looks for the first ones, others for the code. A mark of the byte order is taken."""
    long = "a" * 2000
    asked = {field: [{"role": "user", "content": long}] if field == "messages" else long}
    status, told = post(server, b"\xef\xbb\xbf" + json.dumps(asked).encode(), path)
    error = told["error"] if path == "/api/generate" else told["error"]["message"]
    assert status == 400
    assert error.startswith("This model's maximum context length is 1024 tokens.")
    assert re.search("your messages resulted in 20.. tokens", error)
    assert path == "/api/generate" or told["error"]["code"] == "context_length_exceeded"


OBJECT = {"type": "object"}
CHAT_FUNCTION = {"type": "function", "function": {"name": "f", "parameters": OBJECT}}
FUNCTION = {"type": "function", "name": "f", "parameters": OBJECT}
CUSTOM = {"type": "custom", "name": "f"}
USES = {"name": "f", "input_schema": OBJECT}
SPACE = {"type": "namespace", "name": "a", "tools": [FUNCTION]}


def test_a_tool_that_is_found_again_is_no_second_one():
    """Each search of a conversation may find it, or one that was sent from its beginning."""
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client"}
    found["tools"] = [FUNCTION]
    record = record_of(ResponsesBody, input=[*TURN, found, found], tools=[FUNCTION])
    assert [tool["name"] for tool in record.tools] == ["f"]


def test_another_failure_says_what_it_is(server, monkeypatch, caplog):
    async def fails(*_):
        raise DraftError("it drafts nonsense")

    monkeypatch.setattr(Service, "ask", fails)
    assert post(server, body())[0] == 500
    assert "POST /v1/chat/completions failed: it drafts nonsense" in caplog.text


BEGUN = [*TURN, {"role": "assistant", "content": "I said: "}]
USED = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
CALLED = [*TURN, {"role": "assistant", "content": [USED]}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
SAMPLERS = [
    {"sampling": "ours"},
    {"dry_base": 0.5},
    {"xtc_threshold": 2},
    {"dry_sequence_breakers": [""]},
]
CANNOT = {
    "/v1/completions": [*SAMPLERS, {"logit_bias": {"5": True}}],
    "/tokenize": [{}, {"content": 5}],
    "/detokenize": [{}, {"tokens": [10**6]}],
    "/v1/chat/completions": [
        *SAMPLERS,
        {"temperature": -1}, {"n": 0}, {"n": 1000}, {"stop": [""]}, {"max_tokens": -5}, {"top_p": -1},
        {"logprobs": True, "top_logprobs": 50}, {"logit_bias": {"99999999": 1}},
        {"response_format": {"type": "nonsense"}},
        *({"response_format": {"type": "json_schema", "json_schema": form}} for form in (
            {"name": "x"}, {"name": "x", "schema": {"not": {"type": "integer"}}},
        )),
        *({"chat_template_kwargs": {"messages": other}} for other in ("x", TURN, None)),
        {"chat_template_kwargs": {"tools": "x"}}, {"tools": [CHAT_FUNCTION, CHAT_FUNCTION]},
        {"tools": [{"type": "function", "function": {}}]}, {"tools": [{"type": "custom", "custom": CUSTOM}]},
        {"tools": [CHAT_FUNCTION], "tool_choice": {"type": "function", "function": {"name": "no"}}},
        {"tool_choice": "required"}, {"tool_choice": {"type": "function", "function": {"name": "no"}}},
        {"grammar": "root ::= ["}, {"grammar": "root ::= " + "(" * 20_000},
        {"speculation": {"verify": "no"}}, {"speculation": {"length": "long"}},
        {"speculation": {"verify": "margin", "theta": 7}}, {"speculation": {"theta": 0.5}},
        {"speculation": {"gap": -1}}, {"speculation": {"window": [1, 32]}},
        {"prediction": {}}, {"prediction": {"content": 5}}, {"prediction": {"content": [{"type": "text"}]}},
        {"prediction": "words"}, {"structured_outputs": {"structural_tag": "{}"}},
        {"json_schema": OBJECT, "grammar": "root ::= [a]"},
    ],
    "/v1/messages": [
        *SAMPLERS, {"messages": []}, {"messages": [{"role": "tool", "content": "x"}]}, {"messages": CALLED},
        *({"messages": [{"role": "user", "content": [block]}]} for block in (
            IMAGE, {"type": "search_result"}, {"type": "tool_result"}, 5,
        )),
        {"messages": BEGUN, "tools": [USES], "tool_choice": {"type": "any"}},
        {"messages": BEGUN, "output_config": {"format": {"type": "json_schema", "schema": OBJECT}}},
        {"tool_choice": {"type": "sometimes"}}, {"tools": [USES], "tool_choice": {"type": "tool", "name": "no"}},
        {"tools": [USES, USES]}, {"tools": [{"type": "computer_20250124", "name": "computer"}]},
        {"tools": [{"type": "bash_anew", "name": "bash"}]}, {"tools": [{"name": "add"}]},
        {"stop_sequences": [""]}, {"temperature": -1}, {"thinking": 5}, {"max_tokens": -4},
    ],
    "/v1/responses": [
        *SAMPLERS, {"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"background": True},
        {"tools": [FUNCTION, FUNCTION]}, {"tools": [FUNCTION, CUSTOM]}, {"tools": [SPACE, {**FUNCTION, "name": "a__f"}]},
        {"tools": [{"type": "namespace", "name": "files"}]}, {"tools": [{"type": "custom"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
        {"input": [{"type": "function_call_output"}]}, {"input": [5]}, {"input": []},
        {"text": {"format": {"type": "nonsense"}}}, {"reasoning": "much"}, {"truncation": "auto"},
        {"tools": [{"type": "function"}]}, {"n": 2}, {"top_logprobs": 2},
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "no"}},
        {"include": ["message.output_text.logprobs"]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("path", "odd"), [(path, odd) for path in CANNOT for odd in CANNOT[path]])
def test_what_cannot_be_done_is_refused(server, path, odd):
    told = ask(server, path, 400, **{**LEAST.get(path, {}), **odd})
    assert told["error"]["type"] == "invalid_request_error"
    assert (told.get("type") == "error") == (path == "/v1/messages")
    said = told["error"]["message"]
    assert len(said) > 10
    assert "Error" not in said  # a name of Python's says nothing to them
