"""Reasoning and calls of tools as OpenAI's own client gets them."""

import json

import pytest
from helpers import asking, scripted
from helpers.scripted import call

openai = pytest.importorskip("openai", reason="the extra [test] is not installed")

SAID = "<think>Hm.\nOh.</think>\n\nYes."
TOOL = {"type": "function", "function": {"name": "add", "parameters": scripted.DIGIT}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": scripted.DIGIT}}


@pytest.fixture
def client_with(serve, client_of, tmp_path):
    """A client of a model in whose template these marks are."""
    return lambda *marks, **behind: client_of(serve(scripted.write(tmp_path, *marks, **behind)))


def ask(client, says=None, turns=(), **options):
    """A chat completion; says: what the model is made to say."""
    if says is not None:
        options["extra_body"] = {"grammar": scripted.script(says)}
    options = {"max_tokens": 300, **options}
    messages = [{"role": "user", "content": "go"}, *turns]
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def test_reasoning_is_a_field_of_its_own(client_with):
    client = client_with("<think>")
    message = ask(client, SAID).choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm.\nOh.", "Yes.")
    chunks = [c.choices[0] for c in ask(client, SAID, stream=True) if c.choices]
    kinds = [(getattr(c.delta, "reasoning_content", None), c.delta.content) for c in chunks]
    assert "".join(r or "" for r, _ in kinds) == message.reasoning_content
    assert "".join(t or "" for _, t in kinds) == message.content
    cut = ask(client, SAID, max_tokens=9).choices[0]
    assert (cut.finish_reason, cut.reasoning_cut, cut.message.content) == ("length", True, "")
    last = list(ask(client, SAID, max_tokens=9, stream=True))[-1].choices[0]
    assert (last.finish_reason, last.reasoning_cut) == ("length", True)


def test_a_prompt_may_begin_or_end_reasoning(client_with):
    client = client_with(behind=scripted.THINKS)
    inside = ask(client, "Hm.</think>Yes.").choices[0]
    assert (inside.message.reasoning_content, inside.message.content) == ("Hm.", "Yes.")
    none = {"chat_template_kwargs": {"enable_thinking": False}}
    behind = ask(client, extra_body=none, response_format=FORM).choices[0].message
    assert set(json.loads(behind.content)) == {"n"}
    assert not hasattr(behind, "reasoning_content")
    called = ask(client, extra_body=none, tools=[TOOL], tool_choice="required").choices[0].message
    assert called.tool_calls[0].function.name == "add"


def test_a_text_is_no_chat(client_with):
    """A prompt of /v1/completions goes to the model as it is, whatever template the file has."""
    client = client_with("<think>")
    said = {"extra_body": {"grammar": scripted.script(SAID)}, "max_tokens": 60}
    done = client.completions.create(model="tiny", prompt="abc", **said)
    assert (done.usage.prompt_tokens, done.choices[0].text) == (3, SAID)


@pytest.mark.parametrize(("marks", "bias"), [
    (["<tool_call>"], {}), (["<|channel|>", "<|message|>"], scripted.leaning("c")), # or it would think for ever
])  # fmt: skip
def test_a_call_that_must_be_made(client_with, marks, bias):
    client = client_with(*marks)
    options = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 400, "logit_bias": bias}
    options["parallel_tool_calls"] = False
    answer = ask(client, **options).choices[0]
    (made,) = answer.message.tool_calls
    assert (answer.finish_reason, made.function.name) == ("tool_calls", "add")
    assert set(json.loads(made.function.arguments)) == {"n"}
    chunks = [c.choices[0] for c in ask(client, stream=True, **options) if c.choices]
    calls = [each for c in chunks for each in c.delta.tool_calls or ()]
    assert [(c.function.name, c.index) for c in calls if c.id] == [("add", 0)]
    assert "".join(c.function.arguments for c in calls) == made.function.arguments
    assert chunks[-1].finish_reason == "tool_calls"


def test_two_calls_of_one_answer(client_with, script_all):
    client = client_with("<tool_call>")
    given = [{"n": 1}, {"n": 2}]
    said = "\n".join(["Both.", *(call("add", **each) for each in given)])
    answer = ask(client, said, tools=[TOOL]).choices[0]
    made = answer.message.tool_calls
    assert (answer.finish_reason, answer.message.content.strip()) == ("tool_calls", "Both.")
    assert [json.loads(each.function.arguments) for each in made] == given
    assert len({each.id for each in made}) == 2
    chunks = [c.choices[0] for c in ask(client, said, tools=[TOOL], stream=True) if c.choices]
    pieces = [each for c in chunks for each in c.delta.tool_calls or ()]
    assert [(p.index, p.function.name) for p in pieces if p.id] == [(0, "add"), (1, "add")]
    assert [p.index for p in pieces] == sorted(p.index for p in pieces)
    for n, each in enumerate(made):
        text = "".join(p.function.arguments or "" for p in pieces if p.index == n)
        assert text == each.function.arguments
    results = [{"role": "tool", "tool_call_id": each.id, "content": "3"} for each in made]
    told = answer.message.model_dump(exclude_none=True)
    done = ask(client, "Six.", [told, *results], tools=[TOOL], max_tokens=9)
    assert done.choices[0].message.content == "Six."


HALF = '<tool_call>\n{"name": "tool_search", "arguments": {"commands": ["x\\ud83d"]}}\n</tool_call>'


def test_half_a_character_in_a_call_fails_no_answer(server, script_all):
    """JSON can name it, and UTF-8 has no bytes for it."""
    asked = {
        "messages": [{"role": "user", "content": "go"}], "max_tokens": 200, "grammar": scripted.script(HALF),
        "tools": [{"name": "tool_search", "input_schema": {"type": "object"}}],
    }  # fmt: skip
    (block,) = asking.ask(server, "/v1/messages", **asked)["content"]
    assert block["input"] == {"commands": ["x\ufffd"]}
