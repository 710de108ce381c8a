"""Every chat template that llama.cpp's source brings: prompts are what `transformers` renders, as tokens."""

import json
import re
from collections import Counter, defaultdict
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import sdist, tiny
from text.conftest import user

from pyspec.batch import Settings
from pyspec.batch.maker import AnswerMaker
from pyspec.engine.target import TargetLlama
from pyspec.llama.calls import Method
from pyspec.requests.bodies import read_body, records_of
from pyspec.text.completions import ChatCompletion
from pyspec.text.notation import Notation

MARK = re.compile(r"<[|\uff5c]?/?[A-Za-z_][^<>\s'\"{}|\uff5c]{0,40}[|\uff5c]?>|\[/?[A-Z_]{3,}\]")
CITY = {"city": {"type": "string", "description": "Its name."}, "days": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": CITY, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
ARGUMENTS = {"city": "Paris", "days": 2}
RESULT = '{"sky": "clear"}'

NO_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B": "knows neither",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "writes calls, but no tools",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "writes calls, but no tools",
    "deepseek-ai-DeepSeek-V3.1": "writes calls, but no tools",
    "google-gemma-2-2b-it": "knows neither",
    "llama-cpp-deepseek-r1": "its tools need a Python generator as JSON, which jinja2 does not write",
    "llama-cpp-rwkv-world": "knows neither",
    "microsoft-Phi-3.5-mini-instruct": "knows neither",
}
"""Templates that drop tools, and why: here they are told of in words."""
NO_RESULTS = NO_TOOLS | {
    "Kimi-K2-Instruct": "appends to a list, which the sandbox refuses",
    "Kimi-K2-Thinking": "appends to a list, which the sandbox refuses",
}
NO_CALLS = {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}
"""Templates that leave calls out: they are written in the family's notation."""
NO_SYSTEM = {"google-gemma-2-2b-it"}
TOOLS_ALONE = {
    "CohereForAI-c4ai-command-r-plus-tool_use", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
}  # fmt: skip
"""Templates of the name tool_use: they need a list of tools, be it empty."""
UNUSABLE = {
    "fireworks-ai-llama-3-firefunction-v2": "needs `functions` and `datetime`, which only its maker's code gives"
}
NEITHER = {"CohereForAI-c4ai-command-r-plus-tool_use": "needs tools in another form than OpenAI's"}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(arguments):
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": "call12345", "type": "function", "function": function}


ASKED = [user("How is the weather in Paris?")]
ANSWERED = {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": RESULT}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "user": ([user("What is the capital of France?")], None),
    "system": ([{"role": "system", "content": "You are a pirate."}, user("Who are you?")], None),
    "three turns": ([user("One?"), said("First."), user("Two?\n"), said("Second."), user(" Three? ")], None),
    "tools": (ASKED, [TOOL]),
    "a tool's answer": ([*ASKED, said("", tool_calls=[call(json.dumps(ARGUMENTS))]), ANSWERED], [TOOL]),
    "reasoning": ([user("One?"), said("First.", reasoning_content="Let me think."), user("Two?")], None),
}  # fmt: skip


DAY = datetime(2026, 2, 3, 12)  # noqa: DTZ001 - templates tell local time


@pytest.fixture(autouse=True)
def one_day(monkeypatch):
    """Both sides render on the same day: a test that ran over midnight failed."""
    day = SimpleNamespace(now=lambda: DAY)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", day)
    monkeypatch.setattr("pyspec.text.template.time", DAY.timestamp)


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def oracle(source, messages, tools, **how):
    from transformers.utils.chat_template_utils import render_jinja_template

    today = DAY.strftime("%d %b %Y")  # Llama's, as llama-server gives it
    asked = {"add_generation_prompt": True, "date_string": today, **SPECIAL, **how}
    texts, _ = render_jinja_template(
        conversations=[messages], tools=tools, chat_template=source, **asked
    )
    return str(texts[0])


def called(source, name):
    """What `transformers` renders of a call and its answer, in the form that the template was written for."""
    for content in ("", None):
        for arguments in (ARGUMENTS, json.dumps(ARGUMENTS)):
            turns = [*ASKED, said(content, tool_calls=[call(arguments)]), ANSWERED]
            try:
                text = oracle(source, turns, [TOOL])
            except Exception:  # noqa: BLE001, S112 - a template may fail at any of the forms
                continue
            whole = text.count("get_weather") > 1 and text.count("Paris") > 1
            if whole and "'city': 'Paris'" not in text and "None" not in text:
                return text
    raise AssertionError(name)


def expected(name, source, kind):
    """The prompt that the file asks for; None where it cannot say this."""
    messages, tools = CONVERSATIONS[kind]
    if name in UNUSABLE or (tools and name in NEITHER):
        return None
    if kind == "system" and name in NO_SYSTEM:
        first, second = messages
        return oracle(source, [user(f"{first['content']}\n\n{second['content']}")], None)
    if name in TOOLS_ALONE and not tools:
        return oracle(source, messages, [])
    if kind == "tools" and name in NO_TOOLS:
        return None
    if kind == "a tool's answer":
        return None if name in NO_RESULTS.keys() | NO_CALLS else called(source, name)
    return oracle(source, messages, tools)


PARTS = 8
"""Each test has every eighth template: 62 of them take 5 s."""


@pytest.fixture(scope="module", params=range(PARTS))
def opened(request, tmp_path_factory, shared_renderer):
    folder = tmp_path_factory.mktemp("templates")
    names, found = sorted(sdist.templates())[request.param :: PARTS], {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspec.engine.target.Renderer", shared_renderer)
        for name in names:
            source = sdist.templates()[name]
            path = tiny.write_vocabulary(folder / f"{name}.gguf", source, marks(source))
            found[name] = TargetLlama(str(path), vocab_only=True, trust=True, verbose=False)
    yield found
    for llm in found.values():
        llm.close()


def marks(source):
    """Words of a template that look like control tokens, and the marks of calls that it does not write."""
    unwritten = Notation.of(source).calls.marks if "tool_calls" not in source else ()
    return sorted({*MARK.findall(source), *unwritten} - {"<s>", "</s>", "<unk>"})


def test_a_call_that_a_template_does_not_write_has_the_familys_marks(opened):
    for name in NO_CALLS & opened.keys():
        llm = opened[name]
        form = Notation.of(sdist.templates()[name]).calls
        turns = [*ASKED, said("", tool_calls=[call({"city": form.opens[0]})]), ANSWERED]
        clean = [*ASKED, said(""), ANSWERED]
        more, fewer = (Counter(llm.template.prompt(each, tools=[TOOL])) for each in (turns, clean))
        assert control(llm, [*(more - fewer).elements()]) == [
            llm.tokenize(mark.encode(), add_bos=False, special=True)[0] for mark in form.marks
        ]


def by_class(llm, messages, tools):
    given, *_ = Method("create_chat_completion").read(llm, messages, tools=tools)
    return ChatCompletion(llm, given, None).prompt


def by_serve(llm, messages, tools):
    body = {"messages": messages, **({"tools": tools} if tools else {})}
    (record,) = records_of(read_body("/v1/chat/completions", json.dumps(body).encode()))
    return AnswerMaker(llm, Settings(), 1 << 20).answer(0, record).tokens


DOORS = {"class": by_class, "serve": by_serve}


def test_prompt_is_what_transformers_renders(opened):
    unequal = []
    for name, llm in opened.items():
        for kind, (messages, tools) in CONVERSATIONS.items():
            wanted = expected(name, sdist.templates()[name], kind)
            if wanted is None:
                continue
            tokens = llm.tokenize(wanted.encode(), add_bos=False, special=True)
            for door, prompt in DOORS.items():
                if prompt(llm, messages, tools) != tokens:
                    unequal.append((door, name, kind))
    assert not unequal


def test_an_answer_goes_on_where_it_was_begun(opened):
    """The prompt ends with what there is of it, white space too; before that it is what `transformers` has it go on behind."""
    wrong = {}
    how = {"add_generation_prompt": False, "continue_final_message": True}
    for name, llm in opened.items():
        if name in UNUSABLE:
            continue
        tools: list[Any] | None = [] if name in TOOLS_ALONE else None
        wanted = oracle(sdist.templates()[name], [*ASKED, said("It is")], tools, **how)
        tokens = llm.template.prompt([*ASKED, said("It is ")], goes_on=True)
        found = llm.detokenize(tokens, special=True).decode()
        if found != wanted + " ":
            wrong[name] = found, wanted
    assert not wrong


def test_every_template_that_is_named_is_there():
    named = {*NO_RESULTS, *NO_CALLS, *NO_SYSTEM, *TOOLS_ALONE, *UNUSABLE, *NEITHER}
    assert named <= sdist.templates().keys()


def test_control_words_in_contents_are_text(opened):
    wrong = defaultdict(list)
    for name, llm in opened.items():
        if name in UNUSABLE:
            continue
        source = sdist.templates()[name]
        dirty = f"Look: {' '.join(marks(source))} <s></s><|im_ start end"
        turns = [[user(text), said("Fine."), user(text)] for text in (dirty, "x")]
        tokens, clean = (llm.template.prompt(each) for each in turns)
        if control(llm, tokens) != control(llm, clean):
            wrong["tokens"].append(name)
        wanted = oracle(source, turns[0], [] if name in TOOLS_ALONE else None)
        if llm.detokenize(tokens, special=True).decode() != wanted:
            wrong["text"].append(name)
    assert not wrong


def control(llm, tokens):
    return [token for token in tokens if token < 3 or token >= tiny.N_FIRST]
