"""Histories that programs send, in every chat template that llama.cpp's source brings: nothing that was said is lost."""

import json
from typing import Any

import msgspec
import pytest
from helpers import recorded, sdist, tiny
from text.test_all_templates import UNUSABLE

from pyspec.engine.target import TargetLlama
from pyspec.errors import InputError
from pyspec.requests.bodies import ChatBody, decoded, records_of
from pyspec.serve.messages import MessagesBody
from pyspec.serve.responses import ResponsesBody
from pyspec.text.messages import standard
from pyspec.text.template import ChatTemplate


def said(role, text, **more):
    return {"role": role, "content": text, **more}


def call(*arguments, text=""):
    functions = [{"name": "read_file", "arguments": each} for each in arguments]
    ids = ("call12345", "call12346")
    calls = [{"id": i, "type": "function", "function": each} for i, each in zip(ids, functions)]
    return said("assistant", text, tool_calls=calls)


RESULT = said("tool", "It is empty.", tool_call_id="call12345", name="read_file")
OTHER = said("tool", "It is long.", tool_call_id="call12346", name="read_file")
WHOLE = '{"path": "a.py"}'
CUT = '{"path": "a'

HISTORIES: dict[str, list[dict[str, Any]]] = {
    "a late system prompt": [said("system", "One."), said("user", "Two."), said("system", "Three.")],
    "a system prompt between": [
        said("system", "One."), said("user", "Two."), said("assistant", "Three."),
        said("system", "Four."), said("user", "Five."),
    ],
    "two system prompts": [said("system", "One."), said("developer", "Two."), said("user", "Three.")],
    "a late developer text": [said("user", "One."), said("developer", "Two.")],
    "two users": [said("user", "One."), said("user", "Two.")],
    "a user behind a result": [
        said("system", "One."), said("user", "Two."), call(WHOLE), RESULT, said("user", "Three."),
    ],
    "an answer behind that": [
        said("user", "Two."), call(WHOLE), RESULT, said("user", "Three."), said("assistant", "Four."),
        said("user", "Five."),
    ],
    "a call that was cut": [said("user", "One."), call(CUT), RESULT, said("user", "Go on.")],
    "two calls": [said("user", "One."), call(WHOLE, '{"path": "b.py"}'), OTHER, RESULT],
    "words beside a call": [said("user", "One."), call(WHOLE, text="Two."), RESULT],
    "a turn behind": [
        said("user", "One."), call(WHOLE, text="Two."), RESULT, said("assistant", "Three."), said("user", "Four."),
    ],
    "a switch": [said("system", "Be short. /no_think"), said("user", "Two. /think")],
}  # fmt: skip


def ours():
    for name, turns in HISTORIES.items():
        tools = any("tool_calls" in turn for turn in turns)
        yield name, list(turns), recorded.CHAT_TOOLS if tools else None


def histories():
    yield from ours()
    kinds = {"/v1/responses": ResponsesBody, "/v1/messages": MessagesBody}
    for name, path, _, body in recorded.REQUESTS:
        if path != "/v1/completions":
            (record,) = records_of(body_of(kinds, path, body))
            tools = [{"type": "function", "function": each} for each in record.tools or ()]
            yield name, [with_short_ids(turn) for turn in record.messages or ()], tools or None


def body_of(kinds, path, body):
    return decoded(kinds.get(path.partition("?")[0], ChatBody), msgspec.json.encode(body))


def with_short_ids(turn):
    made = dict(turn)
    if "tool_call_id" in made:
        made["tool_call_id"] = "call12345"
    if made.get("tool_calls"):
        made["tool_calls"] = [{**each, "id": "call12345"} for each in made["tool_calls"]]
    return made


@pytest.fixture(scope="module")
def templates(tmp_path_factory, shared_renderer):
    folder = tmp_path_factory.mktemp("histories")
    path = tiny.write_vocabulary(folder / "v.gguf", None, [])
    llm = TargetLlama(str(path), vocab_only=True, trust=True, verbose=False)
    made = {}
    for name, source in sdist.templates().items():
        (folder / f"{name}.jinja").write_text(source, encoding="utf-8")
        made[name] = ChatTemplate(llm, str(folder / f"{name}.jinja"), renderer=shared_renderer())
    yield made
    llm.close()


PARTS = 4
"""Each test has every fourth template."""


@pytest.mark.parametrize("part", range(PARTS))
def test_all_that_was_said_is_in_the_prompt(templates, part):
    """Texts of users, systems and tools, and calls with what is said beside them."""
    wrong, models = [], sorted(templates)[part::PARTS]
    for model in models:
        for name, turns, tools in histories():
            wrong += [(model, name, text) for text in lost(templates[model], turns, tools)]
    assert UNUSABLE.keys() <= templates.keys()
    assert {model for model, _, _ in wrong} == UNUSABLE.keys() & set(models), wrong


def lost(template, turns, tools):
    try:
        prompt = template.render(turns, tools=tools)
    except InputError as error:
        return [str(error)]
    told = [
        turn for turn in standard(turns) if turn["role"] != "assistant" or turn.get("tool_calls")
    ]
    calls = [call["function"] for turn in told for call in turn.get("tool_calls", ())]
    given = [each["arguments"] for each in calls if isinstance(each["arguments"], dict)]
    wanted = [turn["content"] or "" for turn in told]
    described = [tool["function"].get("description") or "" for tool in tools or ()]
    wanted += [text.replace("'", " ") for text in described]  # which one template escapes
    wanted += [value for each in given for value in each.values() if isinstance(value, str)]
    words = [word for text in wanted for word in text.split() if not word.startswith("/")]
    known = [tool["function"]["name"] for tool in tools or ()]
    names = [each["name"] for each in calls]
    unnamed = [name for name in names if prompt.count(name) < 1 + (name in known)]
    return unnamed + [w for w in words if w not in prompt and json.dumps(w)[1:-1] not in prompt]


@pytest.mark.parametrize("name", ["a late system prompt", "two users"])
def test_turns_stay_as_they_are_where_the_template_takes_them(name, templates):
    prompt = templates["Qwen-Qwen3-0.6B"].render(HISTORIES[name])
    roles = [part.split("\n")[0] for part in prompt.split("<|im_start|>")[1:]]
    assert roles == [*(turn["role"] for turn in HISTORIES[name]), "assistant"]


def test_a_late_system_text_stays_where_it_is(templates):
    template, turns = templates["Qwen3.5-4B"], HISTORIES["a system prompt between"]
    before = template.render(turns[:2], answer=False)
    assert template.render(turns).startswith(before)
    assert "<|im_start|>user\nFour.<|im_end|>" in template.render(turns)


def test_what_is_said_beside_a_call_is_kept_where_it_may_not_stand_beside_thoughts(templates):
    """gpt-oss takes one of both; its own form of calls stays."""
    turns = [said("user", "One."), {**call(WHOLE), "content": "Two.", "reasoning_content": "Hm."}, RESULT]  # fmt: skip
    prompt = templates["openai-gpt-oss-120b"].render(turns, tools=recorded.CHAT_TOOLS)
    assert "analysis<|message|>Hm.\n\nTwo.<|end|>" in prompt
    assert "to=functions.read_file" in prompt


def test_half_a_character_in_a_call_can_be_told():
    """UTF-8 has no bytes for it, and the chat goes on; a whole one that is escaped as two halves stays."""
    (turn,) = standard([call('{"path": "a\\ud83d\\ud83d\\ude00", "\\uDE00": "\\\\ud83d"}')])
    read = turn["tool_calls"][0]["function"]["arguments"]
    assert read == {"path": "a\ufffd\U0001f600", "\ufffd": "\\ud83d"}


def test_arguments_that_were_cut_are_in_the_prompt(templates):
    """As text, or in an object where the template takes nothing else."""
    turns = HISTORIES["a call that was cut"]
    for name in ("Qwen-Qwen3-0.6B", "Qwen3-Coder", "GLM-4.6"):
        prompt = templates[name].render(turns, tools=recorded.CHAT_TOOLS)
        assert CUT in prompt.replace('\\"', '"')


def test_neighbours_are_a_turn_where_roles_must_alternate(templates):
    for name in ("google-gemma-2-2b-it", "mistralai-Mistral-Nemo-Instruct-2407"):
        assert "One.\n\nTwo." in templates[name].render(HISTORIES["two users"])
    nemo = templates["mistralai-Mistral-Nemo-Instruct-2407"]
    prompt = nemo.render(HISTORIES["a user behind a result"], tools=recorded.CHAT_TOOLS)
    assert '[TOOL_RESULTS]{"content": It is empty.\n\nThree.' in prompt


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("those", [ours, pytest.param(histories, marks=pytest.mark.slow)])
def test_what_was_asked_before_changes_no_prompt(templates, those, part):
    """A form that an odd conversation needed is not given to the next one: its prompt is what a fresh process makes."""
    turns = [said("user", "One."), call(WHOLE), RESULT]
    for model in sorted(templates)[part::PARTS]:
        template = templates[model]
        template._forms.clear()
        fresh = told(template, turns, recorded.CHAT_TOOLS)
        for name, *before in those():
            template._forms.clear()
            told(template, *before)
            assert told(template, turns, recorded.CHAT_TOOLS) == fresh, (model, name)


def told(template, turns, tools):
    try:
        return template.render(turns, tools=tools)
    except InputError as error:
        return str(error)
