"""`SpeculativeLlama` answers as `llama_cpp.Llama` does: each test has the original as its reference."""

import json

import llama_cpp
import numpy as np
import pytest
from helpers import tiny
from helpers.completions import CHAT, GREEDY, PROMPT, completed, stable

from pyspec.llama.generation import stream_text
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Margin

SEEDED = {"max_tokens": 40, "seed": 5}


@pytest.mark.parametrize("options", [
    GREEDY, {**SEEDED, "seed": 11}, {**SEEDED, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {**SEEDED, "temperature": -1.0}, {**SEEDED, "typical_p": 0.6}, {**SEEDED, "top_k": 5}, {**SEEDED, "top_p": 0.5},
    {**SEEDED, "min_p": 0.3}, {**SEEDED, "min_p": 0.0},
    {**SEEDED, "mirostat_mode": 1}, {**SEEDED, "mirostat_mode": 2},
    {**GREEDY, "repeat_penalty": 1.4}, {**GREEDY, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    {**GREEDY, "logit_bias": {7: 6.0, 9: -50.0}}, {**SEEDED, "logit_bias": {7: 6.0}, "repeat_penalty": 1.2},
    {**GREEDY, "echo": True}, {**GREEDY, "stop": ["a", "zz"]}, {**GREEDY, "stop": "e"},
    *({**GREEDY, "max_tokens": most} for most in (1, None, -1, 0)),
])  # fmt: skip
def test_completion_equals_llama_cpp_python(pair, options):
    ours, theirs = pair
    assert completed(ours, **options) == completed(theirs, **options)


@pytest.mark.parametrize(
    "options", [GREEDY, {**GREEDY, "stop": ["e"]}, {"seed": 3, "max_tokens": 40, "stop": ["xy"]}]
)
def test_stream_joins_to_the_same_text(pair, options):
    ours, _ = pair
    whole = ours.create_completion(PROMPT, **options)["choices"][0]
    chunks = list(ours.create_completion(PROMPT, stream=True, **options))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert [("speculation" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_pieces_of_text_join_to_the_answers_bytes(open_llama, tiny_target):
    llm = open_llama(tiny_target)
    prompt = llm.tokenize(b"abc", add_bos=False)
    pieces = list(stream_text(llm, prompt, Sampling(temperature=0.0), max_tokens=9))
    ids = [token.id for piece in pieces for token in piece.tokens]
    assert "".join(p.text for p in pieces) == b"".join(map(llm.piece, ids)).decode()
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + ["length"]


@pytest.mark.parametrize("more", [{}, {"response_format": {"type": "json_object"}}, {"stop": "e"}])
def test_chat_equals_llama_cpp_python(pair, more):
    ours, theirs = (stable(llm.create_chat_completion(CHAT, **GREEDY, **more)) for llm in pair)
    assert ours == theirs


def test_chat_stream_joins_to_the_same_text(pair):
    ours, _ = pair
    whole = ours.create_chat_completion(CHAT, **GREEDY)["choices"][0]["message"]["content"]
    chunks = list(ours.create_chat_completion(CHAT, stream=True, **GREEDY))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole
    assert chunks[-1]["speculation"]["rounds"] > 0


@pytest.mark.parametrize("options", [GREEDY, {"max_tokens": 60, "seed": 2}])
def test_grammar_equals_llama_cpp_python(pair, options):
    grammar = llama_cpp.LlamaGrammar.from_string(
        'root ::= ("ab" | "cd" | "efg")+ "."', verbose=False
    )
    ours, theirs = (llm.create_completion(PROMPT, grammar=grammar, **options) for llm in pair)
    assert stable(ours) == stable(theirs)
    assert ours["speculation"]["verification"] == "strict"
    assert set(ours["choices"][0]["text"]) <= set("abcdefg.")


SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    "required": ["yes", "n"],
}


def test_json_schema_is_kept(open_llama, tiny_ascii):
    loose = Margin(theta=0.0, gap=99.0)
    llm = open_llama(tiny_ascii, draft=tiny_ascii, verification=loose, n_ctx=1024)
    options = {"max_tokens": 300, "temperature": 0.0, "logit_bias": {4: -100.0, 3: -100.0}}
    options["response_format"] = {"type": "json_object", "schema": SCHEMA}
    made = llm.create_chat_completion(CHAT, **options)
    found = json.loads(made["choices"][0]["message"]["content"])
    assert (type(found["yes"]), found["n"] in (1, 2, 3)) == (bool, True)
    assert llm.last_speculation["relaxed"] == 0


@pytest.mark.parametrize("k", [1, 4, 9])
def test_logprobs_equal_those_of_logits_all(open_llama, open_plain, tiny_ascii, seeded_draft, k):
    exact = {"flash_attn": False}  # which rounds to 16 bits, otherwise for one row than for several
    ours = open_llama(tiny_ascii, draft=seeded_draft, length=f"fixed:{k}", **exact)
    asked = {"logprobs": 3, **GREEDY}
    found = ours.create_completion(PROMPT, **asked)["choices"][0]["logprobs"]
    assert ours.last_speculation["accepted"] > 0
    theirs = open_plain(tiny_ascii, logits_all=True, **exact)
    wanted = theirs.create_completion(PROMPT, **asked)["choices"][0]["logprobs"]
    assert found["tokens"] == wanted["tokens"]
    np.testing.assert_allclose(found["token_logprobs"], wanted["token_logprobs"], atol=1e-4)
    for mine, other in zip(found["top_logprobs"], wanted["top_logprobs"]):
        assert mine.keys() == other.keys()
        np.testing.assert_allclose(sorted(mine.values()), sorted(other.values()), atol=1e-4)
    parts = [
        c["choices"][0]["logprobs"] for c in ours.create_completion(PROMPT, stream=True, **asked)
    ]
    streamed = [p for part in parts if part for p in part["token_logprobs"]]
    np.testing.assert_allclose(streamed, found["token_logprobs"], atol=1e-4)


def test_stopping_criteria_see_the_text(pair):
    seen = []
    for llm in pair:
        lengths = []

        def stop(ids, _logits, lengths=lengths):
            lengths.append(len(ids))
            return len(lengths) == 7

        criteria = llama_cpp.StoppingCriteriaList([stop])
        (choice,) = llm.create_completion(PROMPT, stopping_criteria=criteria, **GREEDY)["choices"]
        seen.append((lengths, choice["text"], choice["finish_reason"]))
    assert seen[0] == seen[1]


@pytest.fixture(scope="module")
def seeded_draft(tiny_folder):
    return tiny.write(tiny_folder / "seeded-draft.gguf", tokens=tiny.ASCII, noise=0.15)
