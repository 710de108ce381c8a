"""Ollama's API: the same answers as OpenAI's, in its words."""

import json

import pytest
from helpers import scripted
from helpers.asking import ask, begun, get, text_of

TURN = [{"role": "user", "content": "a"}]
ASK = {"model": "tiny", "messages": TURN, "options": {"num_predict": 8}}


def lines(server, path, **body):
    with begun(server, path, json.dumps(body)) as response:
        told = response.read().decode()
    return response.headers["content-type"], [json.loads(line) for line in told.splitlines()]


def openai(server, **body):
    told = ask(server, "/v1/chat/completions", messages=TURN, **body)
    return told["choices"][0]["message"], told["usage"]


def test_a_chat_says_what_openais_says(server):
    """Streams are lines, and the default."""
    whole = ask(server, "/api/chat", **ASK, stream=False)
    message, usage = openai(server, max_tokens=8)
    assert whole["message"] == {"role": "assistant", "content": message["content"]}
    kind, told = lines(server, "/api/chat", **ASK)
    assert kind == "application/x-ndjson"
    assert "".join(line["message"]["content"] for line in told) == message["content"]
    assert [line["done"] for line in told] == [False] * (len(told) - 1) + [True]
    for end in (whole, told[-1]):
        assert (end["prompt_eval_count"], end["eval_count"]) == (usage["prompt_tokens"], 8)
        assert (end["done"], end["done_reason"], end["model"]) == (True, "length", "tiny")
        assert end["total_duration"] >= end["prompt_eval_duration"] > 0


def test_a_text_is_a_chats_turn_or_raw(server):
    options = {"num_predict": 6}
    told = ask(server, "/api/generate", prompt="a", options=options, stream=False)
    assert told["response"] == openai(server, max_tokens=6)[0]["content"]
    raw = ask(server, "/api/generate", prompt="a", raw=True, options=options, stream=False)
    plain = ask(server, "/v1/completions", prompt="a", max_tokens=6)
    assert raw["response"] == text_of(plain)
    _, streamed = lines(server, "/api/generate", prompt="a", options=options)
    assert "".join(line["response"] for line in streamed) == told["response"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_nothing_asked_loads_the_model(server, path):
    told = ask(server, path, model="tiny")
    assert (told["done"], told["done_reason"]) == (True, "load")


def test_options_are_those_of_samplers(server):
    whole = ask(server, "/api/chat", **ASK, stream=False)["message"]["content"]
    cut = {**ASK, "options": {"num_predict": 8, "stop": [whole[3]], "num_ctx": 512}}
    told = ask(server, "/api/chat", **cut, stream=False)
    assert told["message"]["content"] == whole[: whole.index(whole[3])]
    assert told["done_reason"] == "stop"
    hot = {**ASK, "options": {"num_predict": 8, "temperature": 1.5, "seed": 7}}
    drawn = ask(server, "/api/chat", **hot, stream=False)["message"]["content"]
    assert drawn == openai(server, max_tokens=8, temperature=1.5, seed=7)[0]["content"] != whole


def test_reasoning_is_thinking_and_calls_have_objects(server, script_all):
    """In a stream calls come whole, before the end."""
    call = '<think>hm</think><tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": TURN, "tools": [tool], "options": {"num_predict": 200}}
    body["grammar"] = scripted.script(call)
    message = ask(server, "/api/chat", **body, stream=False)["message"]
    calls = [{"function": {"name": "f", "arguments": {"x": 1}}}]
    assert (message["thinking"], message["tool_calls"]) == ("hm", calls)
    _, told = lines(server, "/api/chat", **body)
    assert "".join(line["message"].get("thinking", "") for line in told) == "hm"
    made = [line["message"].get("tool_calls") for line in told]
    assert [each for each in made if each] == [calls]
    assert told[-1]["done"]


def test_tools_results_go_back(server):
    calls = [{"function": {"name": "f", "arguments": {"x": 1}}}]
    turns = [*TURN, {"role": "assistant", "content": "", "tool_calls": calls, "thinking": "hm"}]
    turns += [{"role": "tool", "tool_name": "f", "content": "2"}]
    told = ask(server, "/api/chat", messages=turns, options={"num_predict": 2}, stream=False)
    assert told["prompt_eval_count"] > 20


@pytest.mark.parametrize(("path", "body", "says"), [
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "SpeculativeLlama"),
        ("/api/generate", {"prompt": "a", "images": ["x"]}, "SpeculativeLlama"),
        ("/api/chat", {"messages": TURN, "format": "xml"}, "'xml'"),
        ("/api/chat", {"messages": TURN, "think": "much"}, "'much'"),
        ("/api/chat", {"messages": TURN, "options": {"mirostat": 2}}, "mirostat is not supported"),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template is not supported"),
        ("/api/generate", {"prompt": "a", "context": [1]}, "context is not supported"),
])  # fmt: skip
def test_what_is_not_done_is_refused_in_its_form(server, path, body, says):
    """{"error": text}, whole and streamed."""
    for stream in (True, False):
        assert says in ask(server, path, 400, **body, stream=stream)["error"]


def test_what_is_known_of_models(server):
    (tag,) = get(server, "/api/tags")[1]["models"]
    (loaded,) = get(server, "/api/ps")[1]["models"]
    assert tag["name"] == loaded["name"] == "tiny"
    assert len(tag["digest"]) == 64  # ollama's own client cuts twelve digits out
    assert tag["details"]["family"] == "llama"
    assert loaded["context_length"] == 1024
    told = ask(server, "/api/show", model="tiny")
    assert told["capabilities"] == ["completion", "thinking"]
    assert told["model_info"]["llama.block_count"] == 2
    assert get(server, "/api/version")[1]["version"].count(".") == 2


def test_an_unknown_path_of_ollamas_is_refused_in_its_form(server):
    assert ask(server, "/api/pull", 404, model="x") == {"error": "Not Found"}


def test_ollamas_client_chats_and_lists(server):
    ollama = pytest.importorskip("ollama", reason="install pyspec-llama[clients]")
    client = ollama.Client(host=server.url)
    pieces = list(client.chat("tiny", TURN, options={"num_predict": 8}, stream=True))
    assert pieces[-1].eval_count == 8
    assert client.generate("tiny", "a", options={"num_predict": 4}).eval_count == 4
    assert [model.model for model in client.list().models] == ["tiny"]
    assert client.ps().models[0].model == "tiny"
    assert "completion" in client.show("tiny").capabilities
    with pytest.raises(ollama.ResponseError, match="mirostat"):
        client.chat("tiny", TURN, options={"mirostat": 2})
    client._client.close()
