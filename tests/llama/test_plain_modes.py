"""Objects with a score buffer or for embeddings answer whatever `llama_cpp.Llama` answers."""

import json

import numpy as np
import pytest
from helpers.completions import CHAT, GREEDY
from llama_cpp import Llama, LlamaGrammar, LogitsProcessorList

from pyspec.errors import EngineError, OptionError

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "pick", "parameters": SCHEMA}}
MODES = [{}, {"logits_all": True}, {"embedding": True}]
ASKED = {
    "plain": {},
    "json_object": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "forced": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "pick"}}},
    "auto": {"tools": [TOOL], "tool_choice": "auto"},
    "gbnf": {"grammar": 'root ::= "ab" [cd]'},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
}


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: next(iter(mode), "drafting"))
def both(request, tiny_ascii):
    from pyspec.llama.speculative import SpeculativeLlama

    same = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **request.param}
    ours = SpeculativeLlama(str(tiny_ascii), draft="none", trust=True, **same)
    theirs = Llama(str(tiny_ascii), **same)
    yield ours, theirs
    ours.close()
    theirs.close()


def answer(llm, asked, *, stream):
    asked = {**asked}
    if "grammar" in asked:
        asked["grammar"] = LlamaGrammar.from_string(asked["grammar"], verbose=False)
    try:
        made = llm.create_chat_completion(
            CHAT, **{**GREEDY, "max_tokens": 200}, stream=stream, **asked
        )
        if not stream:
            return said(made["choices"][0]["message"])
        return "".join(said(chunk["choices"][0]["delta"]) for chunk in made)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other must have it too
        return error


def said(message):
    calls = message.get("tool_calls") or ()
    return (message.get("content") or "") + "".join(
        call["function"].get("arguments") or "" for call in calls
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ASKED)
def test_what_llama_answers_is_answered(both, kind, stream):
    found, wanted = (answer(llm, ASKED[kind], stream=stream) for llm in both)
    if isinstance(wanted, Exception):
        return
    assert isinstance(found, str), found
    if kind in ("schema", "forced"):
        assert json.loads(found)["a"] in ("x", "yy")
    if kind == "gbnf":
        assert found in ("abc", "abd")


def test_processors_are_heard(both):
    ours, _ = both
    wanted = ours.tokenize(b"c", add_bos=False)[0]

    def only(_ids, scores):
        out = np.full_like(scores, -np.inf)
        out[wanted] = 0.0
        return out

    how = {"max_tokens": 3, "temperature": 0.0, "logits_processor": LogitsProcessorList([only])}
    assert ours.create_completion("a", **how)["choices"][0]["text"] == "ccc"


@pytest.mark.parametrize("mode", ["logits_all", "embedding"])
def test_samplers_that_they_lack_are_refused(open_llama, tiny_ascii, mode):
    """llama-cpp-python would decode without it."""
    llm = open_llama(tiny_ascii, **{mode: True})
    with pytest.raises(EngineError, match=f"{mode}.*use generate"):
        next(llm.steps([5]))
    for call in (llm.create_completion, llm.generate):
        with pytest.raises(OptionError, match=r"^xtc_probability does not work with"):
            call(llm.tokenize(b"abc"), xtc_probability=0.5)
