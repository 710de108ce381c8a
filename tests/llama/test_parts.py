"""Reasoning and calls of tools in the class's chat completions."""

import json
import re

import pytest
from helpers import scripted
from llama_cpp import LlamaGrammar

from pyspec.errors import InputError

SAID = "<think>Hm.</think>\n\nYes."
TOOL = {"type": "function", "function": {"name": "add", "parameters": scripted.DIGIT}}
CHAT = [{"role": "user", "content": "go"}]


@pytest.fixture
def made(tmp_path, open_llama):
    return lambda *marks, **options: open_llama(
        scripted.write(tmp_path, *marks), n_ctx=1024, **options
    )


def said(llm, text, **options):
    grammar = LlamaGrammar.from_string(scripted.script(text), verbose=False)
    return llm.create_chat_completion(CHAT, grammar=grammar, **{"max_tokens": 300, **options})


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_reasoning_is_a_field_of_its_own(made, draft):
    llm = made("<think>", draft=draft)
    result = said(llm, SAID)
    (choice,) = result["choices"]
    assert choice["message"]["reasoning_content"] == "Hm."
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes.", "stop")
    assert result["usage"]["completion_tokens"] == len(SAID)
    assert result["speculation"]["rounds"] > 0
    chunks = list(said(llm, SAID, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm."
    assert "".join(d.get("content", "") for d in deltas) == "Yes."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["speculation"]["rounds"] > 0


def test_an_answer_cut_inside_reasoning_says_so(made):
    llm = made("<think>")
    (choice,) = said(llm, SAID, max_tokens=9)["choices"]
    assert (choice["finish_reason"], choice["reasoning_cut"]) == ("length", True)
    assert choice["message"] == {"role": "assistant", "content": "", "reasoning_content": "Hm"}
    last = list(said(llm, SAID, max_tokens=9, stream=True))[-1]["choices"][0]
    assert (last["finish_reason"], last["reasoning_cut"]) == ("length", True)


def test_stop_strings_end_the_content(made):
    llm = made("<think>")
    for stream in (False, True, False):
        result = said(llm, SAID, stop=["m", "s"], stream=stream)
        choices = [c["choices"][0] for c in result] if stream else [result["choices"][0]]
        shown = [c.get("delta") or c.get("message") or {} for c in choices]
        assert "".join(each.get("content") or "" for each in shown) == "Ye"
        assert choices[-1]["finish_reason"] == "stop"


CALLS = "\n".join(
    f'<tool_call>{{"name": "add", "arguments": {{"n": {n}}}}}</tool_call>' for n in (1, 2)
)


def test_calls_are_told_apart(made):
    llm = made("<tool_call>")
    options = {"tools": [TOOL]}
    (choice,) = said(llm, f"So. {CALLS}", **options)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("So.", "tool_calls")
    calls = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
    assert calls == ['{"n": 1}', '{"n": 2}']
    chunks = [c["choices"][0] for c in said(llm, f"So. {CALLS}", stream=True, **options)]
    told = [call for c in chunks for call in c["delta"].get("tool_calls", ())]
    begun = [(c["index"], c["function"]["name"]) for c in told if "id" in c]
    assert begun == [(0, "add"), (1, "add")]
    assert chunks[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("options", [
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
    {"functions": [TOOL["function"]], "function_call": {"name": "add"}},
])  # fmt: skip
@pytest.mark.parametrize("marks", [["<tool_call>"], ["<tool_call>", "<arg_key>"], ["[TOOL_CALLS]"]])
def test_a_call_that_must_be_made(made, marks, options):
    llm = made(*marks)
    (choice,) = llm.create_chat_completion(CHAT, max_tokens=300, **options)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"n"}
    assert choice["finish_reason"] == "tool_calls"
    assert ("function_call" in choice["message"]) == ("functions" in options)
    chunks = llm.create_chat_completion(CHAT, max_tokens=300, stream=True, **options)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    found = [each.get("function_call") for each in deltas if "tool_calls" in each]
    wanted = [each["tool_calls"][0]["function"] for each in deltas if "tool_calls" in each]
    assert found == (wanted if "functions" in options else [None] * len(wanted))


@pytest.mark.parametrize(("options", "says"), [
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}}, "not among the tools"),
    ({"response_format": {"type": "xml"}}, "use "), ({"response_format": "json"}, "response_format"),
    ({"tools": [TOOL], "tool_choice": "always"}, "use "), ({"tools": [{}]}, "no function"), ({"tools": "x"}, "no function"),
    ({"messages": "go"}, "no object"),
])  # fmt: skip
def test_what_there_is_not_is_refused(made, options, says):
    with pytest.raises(InputError, match=says):
        made("<tool_call>").create_chat_completion(**{"messages": CHAT, **options})


@pytest.mark.parametrize(("form", "first", "content"), [
    ({"type": "json_object", "schema": scripted.DIGIT}, "{", r'\{\s*"n"\s*:\s*\d\s*\}'),
    ({"type": "regex", "regex": "yes|no"}, "y", "yes"),
    ({"type": "choice", "choice": ["no", "yes"]}, "y", "yes"),
])  # fmt: skip
def test_a_shape_is_the_contents(made, form, first, content):
    how = {"response_format": form, "logit_bias": scripted.leaning(first), "max_tokens": 200}
    (choice,) = made("<think>").create_chat_completion(CHAT, **how)["choices"]
    assert re.fullmatch(content, choice["message"]["content"])


def test_logprobs_stay_beside_their_tokens(made):
    result = said(made("<think>"), SAID, logprobs=True, top_logprobs=2)
    content = result["choices"][0]["logprobs"]["content"]
    assert [len(each["top_logprobs"]) for each in content] == [2] * len(SAID)
    chunks = said(made("<think>"), SAID, logprobs=True, stream=True, max_tokens=1)
    assert [bool(c["choices"][0]["logprobs"]) for c in chunks] == [False, True, False]


@pytest.mark.parametrize("marks", [["<think>"], ["<think>", "<tool_call>"]])
def test_json_mode_beside_reasoning_and_tools(made, marks):
    llm = made(*marks, draft="none")
    bias = {**scripted.leaning("{"), **scripted.leaning("}")}
    how = {"response_format": {"type": "json_object"}, "logit_bias": bias, "max_tokens": 200}
    tools = {"tools": [TOOL]} if "<tool_call>" in marks else {}
    (choice,) = llm.create_chat_completion(CHAT, **how, **tools)["choices"]
    assert isinstance(json.loads(choice["message"]["content"]), dict)
