"""`SpeculativeLlama` answers as `llama_cpp.Llama` does, only faster: each test has the original as its reference."""

from __future__ import annotations

import json
import logging
import pickle

import llama_cpp
import numpy as np
import pytest
import tiny
from answers import Scripted, ask, counters
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding

from pyspec.errors import OptionError
from pyspec.llama import OFF, Speculation
from pyspec.rules import Margin, Strict

PROMPT = "abcabd"
GREEDY = {"temperature": 0.0, "max_tokens": 40}
CHAT = [{"role": "user", "content": "say abc abc"}]


@pytest.fixture
def pair(open_llama, open_plain, tiny_ascii):
    """(ours, theirs) over one file, ours with itself as draft."""
    return open_llama(tiny_ascii, draft=tiny_ascii, n_ctx=1024), open_plain(tiny_ascii, n_ctx=1024)


def stable(result):
    """A completion without what differs from call to call."""
    return {
        key: value
        for key, value in result.items()
        if key not in ("id", "created", "speculation", "model")
    }


# -- the same answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        GREEDY,
        {"max_tokens": 40, "seed": 11},
        {"max_tokens": 40, "seed": 11, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"max_tokens": 40, "seed": 5, "temperature": -1.0},
        {"max_tokens": 40, "seed": 5, "typical_p": 0.6},
        {"max_tokens": 40, "seed": 5, "mirostat_mode": 1},
        {"max_tokens": 40, "seed": 5, "mirostat_mode": 2},
        {**GREEDY, "repeat_penalty": 1.4},
        {**GREEDY, "frequency_penalty": 0.7, "presence_penalty": 0.3},
        {**GREEDY, "logit_bias": {7: 6.0, 9: -50.0}},
        {"max_tokens": 40, "seed": 5, "logit_bias": {7: 6.0}, "repeat_penalty": 1.2},
        {**GREEDY, "echo": True},
        {**GREEDY, "stop": ["a", "zz"]},
        {**GREEDY, "stop": "e"},
        {**GREEDY, "max_tokens": 1},
        {**GREEDY, "max_tokens": None},
        {**GREEDY, "max_tokens": -1},
        {**GREEDY, "max_tokens": 0},
    ],
)
def test_completion_equals_llama_cpp_python(pair, options):
    """Text, finish reason and usage are the original's, greedy or sampled with a seed."""
    ours, theirs = pair
    assert stable(ours.create_completion(PROMPT, **options)) == stable(
        theirs.create_completion(PROMPT, **options)
    )


def test_call_is_create_completion(pair):
    """`llm(prompt)` is the same call."""
    ours, theirs = pair
    assert stable(ours(PROMPT, **GREEDY)) == stable(theirs(PROMPT, **GREEDY))


@pytest.mark.parametrize(
    "options", [GREEDY, {**GREEDY, "stop": ["e"]}, {"seed": 3, "max_tokens": 40, "stop": ["xy"]}]
)
def test_stream_joins_to_the_same_text(pair, options):
    """Streaming gives the text of the plain call, and its last chunk has the statistics."""
    ours, _ = pair
    whole = ours.create_completion(PROMPT, **options)["choices"][0]
    chunks = list(ours.create_completion(PROMPT, stream=True, **options))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert [("speculation" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_chat_equals_llama_cpp_python(pair):
    """create_chat_completion goes through the same template and gives the same answer."""
    ours, theirs = pair
    assert stable(ours.create_chat_completion(CHAT, **GREEDY)) == stable(
        theirs.create_chat_completion(CHAT, **GREEDY)
    )


def test_chat_stream_joins_to_the_same_text(pair):
    """Chat chunks carry the content of the plain call."""
    ours, _ = pair
    whole = ours.create_chat_completion(CHAT, **GREEDY)["choices"][0]["message"]["content"]
    chunks = list(ours.create_chat_completion(CHAT, stream=True, **GREEDY))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole
    assert chunks[-1]["speculation"]["rounds"] > 0


@pytest.mark.parametrize("options", [GREEDY, {"max_tokens": 60, "seed": 2}])
def test_grammar_equals_llama_cpp_python(pair, options):
    """Under a grammar the text is the original's, and strict."""
    _ours, _theirs = pair
    grammar = 'root ::= ("ab" | "cd" | "efg")+ "."'
    results = [
        llm.create_completion(
            PROMPT, grammar=llama_cpp.LlamaGrammar.from_string(grammar, verbose=False), **options
        )
        for llm in pair
    ]
    assert stable(results[0]) == stable(results[1])
    assert results[0]["speculation"]["verification"] == "strict"
    assert set(results[0]["choices"][0]["text"]) <= set("abcdefg.")


def test_response_format_json(pair):
    """JSON mode gives the original's text."""
    ours, theirs = pair
    options = {**GREEDY, "response_format": {"type": "json_object"}}
    assert stable(ours.create_chat_completion(CHAT, **options)) == stable(
        theirs.create_chat_completion(CHAT, **options)
    )


SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    "required": ["yes", "n"],
}


def test_json_schema_is_kept(open_llama, tiny_ascii):
    """A schema constrains a random model's babble to valid JSON, also with a draft and the margin rule."""
    llm = open_llama(
        tiny_ascii, draft=tiny_ascii, verification=Margin(theta=0.0, gap=99.0), n_ctx=1024
    )
    options = {
        "response_format": {"type": "json_object", "schema": SCHEMA},
        "max_tokens": 300,
        "temperature": 0.0,
    }
    message = llm.create_chat_completion(CHAT, **options, logit_bias={4: -100.0, 3: -100.0})[
        "choices"
    ][0]["message"]
    found = json.loads(message["content"])
    assert isinstance(found["yes"], bool)
    assert found["n"] in (1, 2, 3)
    assert llm.last_speculation["relaxed"] == 0


def test_tools_equal_llama_cpp_python(pair):
    """A named tool's arguments are drafted under its schema, strictly, and come out as the original's."""
    ours, _theirs = pair
    tool = {"type": "function", "function": {"name": "answer", "parameters": SCHEMA}}
    options = {
        **GREEDY,
        "max_tokens": 200,
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "answer"}},
    }
    results = [stable(llm.create_chat_completion(CHAT, **options)) for llm in pair]
    for result in results:
        for call in result["choices"][0]["message"]["tool_calls"]:
            call["id"] = ""
    assert results[0] == results[1]
    assert ours.last_speculation["verification"] == "strict"


@pytest.mark.parametrize("k", [1, 4, 9])
def test_logprobs_equal_those_of_logits_all(open_llama, open_plain, tiny_ascii, tiny_folder, k):
    """The log probabilities of emitted tokens and of the best others are those of a score buffer of everything."""
    draft = tiny.write(tiny_folder / "ascii-draft.gguf", tokens=tiny.ASCII, noise=0.15)
    ours = open_llama(tiny_ascii, draft=draft, length=f"fixed:{k}")
    theirs = open_plain(tiny_ascii, logits_all=True)
    found, wanted = (
        llm.create_completion(PROMPT, logprobs=3, **GREEDY)["choices"][0]["logprobs"]
        for llm in (ours, theirs)
    )
    assert ours.last_speculation["accepted"] > 0
    assert found["tokens"] == wanted["tokens"]
    np.testing.assert_allclose(found["token_logprobs"], wanted["token_logprobs"], atol=1e-4)
    for ours_top, theirs_top in zip(found["top_logprobs"], wanted["top_logprobs"]):
        assert ours_top.keys() == theirs_top.keys()
        np.testing.assert_allclose(
            sorted(ours_top.values()), sorted(theirs_top.values()), atol=1e-4
        )


def test_logprobs_in_a_stream(pair):
    """Streamed chunks have their token's log probability."""
    ours, _ = pair
    whole = ours.create_completion(PROMPT, logprobs=2, **GREEDY)["choices"][0]["logprobs"][
        "token_logprobs"
    ]
    chunks = ours.create_completion(PROMPT, logprobs=2, stream=True, **GREEDY)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    found = [p for part in parts if part for p in part["token_logprobs"]]
    np.testing.assert_allclose(found, whole, atol=1e-4)


def test_stopping_criteria_see_the_text(pair):
    """A stopping criterion reads prompt and answer up to the last token, as the original's does."""
    _ours, _theirs = pair
    seen = []
    for llm in pair:
        lengths: list[int] = []

        def stop(ids, _logits, lengths=lengths):
            lengths.append(len(ids))
            return len(lengths) == 7

        text = llm.create_completion(
            PROMPT, stopping_criteria=llama_cpp.StoppingCriteriaList([stop]), **GREEDY
        )
        seen.append((lengths, text["choices"][0]["text"], text["choices"][0]["finish_reason"]))
    assert seen[0] == seen[1]


def test_generate_yields_the_same_ids(pair):
    """`generate` goes on past max_tokens of anybody, as the original's does."""
    ours, _theirs = pair
    tokens = ours.tokenize(PROMPT.encode())
    ids = [[token for token, _ in zip(llm.generate(tokens, temp=0.0), range(50))] for llm in pair]
    assert ids[0] == ids[1]


def test_generate_takes_tokens_that_are_sent(pair):
    """Tokens sent into the generator become part of the text, and the answer goes on from there."""
    ours, theirs = pair  # (the original's own generator aborts the process here)
    prompt = ours.tokenize(PROMPT.encode())
    stream = ours.generate(prompt, temp=0.0)
    ids = [next(stream) for _ in range(5)]
    rest = [stream.send([40, 41, 42]), *(next(stream) for _ in range(10))]
    wanted = theirs.generate([*prompt, *ids, 40, 41, 42], temp=0.0)
    assert rest == [next(wanted) for _ in range(11)]


# -- what is particular to us ------------------------------------------------------------------------------------------


def test_speculation_block(pair):
    """A result says what was drafted, by what, and how much of it was taken."""
    ours, _ = pair
    result = ours.create_completion(PROMPT, **GREEDY)
    block = result["speculation"]
    assert block is ours.last_speculation
    assert (block["draft"], block["companion"], block["verification"]) == (
        "ascii",
        "none",
        "strict",
    )
    assert block["accepted"] == block["drafted"] == sum(block["accepted_by_position"])
    assert block["rounds"] + block["accepted"] == 40
    assert block["prompt_tokens"] == len(PROMPT)


def test_off_for_one_call(pair):
    """speculation=OFF decodes that call plainly and no other."""
    ours, _ = pair
    plain = ours.create_completion(PROMPT, speculation=OFF, **GREEDY)
    assert plain["speculation"]["drafted"] == 0
    assert plain["speculation"]["draft"] == "none"
    drafted = ours.create_completion(PROMPT, **GREEDY)
    assert drafted["speculation"]["drafted"] > 0
    assert stable(plain) == stable(drafted)


def test_length_for_one_call(pair):
    """A call may have a draft length of its own."""
    ours, _ = pair
    block = ours.create_completion(PROMPT, speculation=Speculation(length="fixed:2"), **GREEDY)[
        "speculation"
    ]
    assert len(block["accepted_by_position"]) == 2
    assert len(ours.create_completion(PROMPT, **GREEDY)["speculation"]["accepted_by_position"]) == 4


def test_bad_length_is_refused(pair, open_llama, tiny_ascii):
    """A draft length that is none is refused when it is named."""
    with pytest.raises(OptionError):
        open_llama(tiny_ascii, length="fixed:x")
    with pytest.raises(OptionError):
        pair[0].create_completion(PROMPT, speculation=Speculation(length="long"), **GREEDY)


def test_streams_keep_their_own_rule(open_llama, tiny_ascii):
    """A rule given to a streaming call holds while it streams, and for it alone."""
    llm = open_llama(tiny_ascii, draft=tiny_ascii, verification=Margin())
    chunks = llm.create_completion(
        PROMPT, stream=True, speculation=Speculation(verification=Strict()), **GREEDY
    )
    assert list(chunks)[-1]["speculation"]["verification"] == "strict"
    assert llm.create_completion(PROMPT, **GREEDY)["speculation"]["verification"] == "margin"


def test_no_score_buffer(pair):
    """No n_ctx x n_vocab floats are held."""
    assert pair[0].scores.size == 0


def test_logits_processor_falls_back_and_says_so_once(pair, caplog):
    """A Python logits processor is honoured by plain decoding; one line says so, however many calls there are."""
    processors = llama_cpp.LogitsProcessorList([forbid_a])
    ours, theirs = pair
    wanted = stable(theirs.create_completion(PROMPT, logits_processor=processors, **GREEDY))
    with caplog.at_level(logging.WARNING, "pyspec"):
        for _ in range(2):
            found = ours.create_completion(PROMPT, logits_processor=processors, **GREEDY)
            assert stable(found) == wanted
            assert found["speculation"]["drafted"] == 0
    assert caplog.text.count("logits processor") == 1


def forbid_a(_ids, scores):
    """A logits processor: never the most frequent letter of the unbiased answer."""
    scores = np.copy(scores)
    scores[40] = -1e9
    scores[41] = scores[41] + 3.0
    return scores


def test_pickling_is_refused(pair):
    """One sentence, not a crash in another process."""
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(pair[0])


@pytest.mark.parametrize("name", ["draft", "draft_model"])
def test_draft_model_of_llama_cpp_python(open_llama, open_plain, tiny_ascii, name):
    """A LlamaDraftModel drafts, given as draft= or under llama-cpp-python's own name."""
    options = {name: LlamaPromptLookupDecoding(num_pred_tokens=3)}
    if name == "draft_model":
        options["draft"] = "auto"
    llm = open_llama(tiny_ascii, **options)
    text = llm.create_completion(PROMPT, **{**GREEDY, "max_tokens": 150})
    assert stable(text) == stable(
        open_plain(tiny_ascii).create_completion(PROMPT, **{**GREEDY, "max_tokens": 150})
    )
    assert llm.last_speculation["draft"] == "LlamaPromptLookupDecoding"
    assert llm.last_speculation["accepted"] > 0


def test_draft_model_that_returns_junk(open_llama, tiny_ascii):
    """A LlamaDraftModel of somebody's own may be wrong in any way."""

    class Junk(LlamaDraftModel):
        def __call__(self, input_ids, /, **kwargs):
            return np.array([10**6, -1], dtype=np.intc)

    text = open_llama(tiny_ascii, draft=Junk()).create_completion(PROMPT, **GREEDY)
    assert stable(text) == stable(open_llama(tiny_ascii).create_completion(PROMPT, **GREEDY))


# -- the cache between calls -------------------------------------------------------------------------------------------


def kept(llm):
    """Prompt tokens that the last call found in the KV."""
    return llm.last_speculation["prompt_kept"]


def test_prefix_is_kept_between_calls(open_llama, tiny_ascii):
    """A prompt that goes on from the last answer reads only what is new; the draft's KV too is kept."""
    llm = open_llama(tiny_ascii, draft=tiny_ascii)
    text = llm.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    assert kept(llm) == 0
    before = counters(llm).rows
    again = llm.create_completion(PROMPT + text + "xy", **GREEDY)
    assert kept(llm) == len(PROMPT) + 39
    rows = [after - was for after, was in zip(counters(llm).rows, before)]
    assert rows[0] == 3 - 1 + again["speculation"]["rounds"] + again["speculation"]["drafted"]
    assert rows[1] <= 3 + 2 + 40
    assert stable(again) == stable(
        open_llama(tiny_ascii).create_completion(PROMPT + text + "xy", **GREEDY)
    )


def test_same_prompt_again_reads_one_token(pair):
    """The whole prompt but its last token is found again."""
    ours, _ = pair
    first = ours.create_completion(PROMPT, **GREEDY)
    assert stable(ours.create_completion(PROMPT, **GREEDY)) == stable(first)
    assert kept(ours) == len(PROMPT) - 1


def test_prefix_after_a_stop_string(pair):
    """After a stop string cut the answer, the next call is right and keeps what it shares."""
    ours, theirs = pair
    full = theirs.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    cut = ours.create_completion(PROMPT, stop=[full[10:12]], **GREEDY)["choices"][0]["text"]
    prompt = PROMPT + cut + "qqq"
    assert stable(ours.create_completion(prompt, **GREEDY)) == stable(
        theirs.create_completion(prompt, **GREEDY)
    )
    assert kept(ours) == len(PROMPT + cut)


def test_prefix_after_a_stream_was_dropped(pair):
    """A stream that was not read to its end leaves a usable cache."""
    ours, theirs = pair
    stream = ours.create_completion(PROMPT, stream=True, **GREEDY)
    next(stream)
    next(stream)
    del stream
    assert stable(ours.create_completion(PROMPT, **GREEDY)) == stable(
        theirs.create_completion(PROMPT, **GREEDY)
    )
    assert kept(ours) == len(PROMPT) - 1


def test_reset_forgets(pair):
    """reset() has the next call read its whole prompt."""
    ours, _ = pair
    first = ours.create_completion(PROMPT, **GREEDY)
    ours.reset()
    assert stable(ours.create_completion(PROMPT, **GREEDY)) == stable(first)
    assert kept(ours) == 0


def test_eval_by_the_user_is_noticed(pair):
    """Tokens that the user evaluated by hand are found in the cache where they fit, and dropped where they do not."""
    ours, theirs = pair
    ours.create_completion(PROMPT, **GREEDY)
    ours.reset()
    ours.eval(ours.tokenize(b"abcabdxyz"))
    assert stable(ours.create_completion("abcabdxyzabc", **GREEDY)) == stable(
        theirs.create_completion("abcabdxyzabc", **GREEDY)
    )
    assert kept(ours) == 9
    ours.eval([5, 6, 7])
    assert stable(ours.create_completion(PROMPT, **GREEDY)) == stable(
        theirs.create_completion(PROMPT, **GREEDY)
    )
    assert kept(ours) == len(PROMPT) - 1


def test_eval_and_sample_work_as_in_the_original(pair):
    """The low-level calls of llama-cpp-python give what they gave."""
    found = []
    for llm in pair:
        llm.reset()
        llm.eval(llm.tokenize(PROMPT.encode()))
        ids = []
        for _ in range(5):
            ids.append(llm.sample(temp=0.0))
            llm.eval([ids[-1]])
        found.append(ids)
    assert found[0] == found[1]


def test_saved_state_goes_on(pair):
    """load_state brings the text back: a prompt on it reads only what is new, and the answer is right."""
    ours, theirs = pair
    text = ours.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    state = ours.save_state()
    ours.create_completion("zzzzyyyyxxxx", **GREEDY)
    ours.load_state(state)
    prompt = PROMPT + text + "mm"
    assert stable(ours.create_completion(prompt, **GREEDY)) == stable(
        theirs.create_completion(prompt, **GREEDY)
    )
    assert kept(ours) == len(PROMPT) + 39


def test_state_moves_to_another_object(pair, open_llama, tiny_ascii):
    """A state saved by one object is loaded by another one, and by llama-cpp-python's own."""
    ours, theirs = pair
    text = ours.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    other = open_llama(tiny_ascii, n_ctx=1024)
    other.load_state(ours.save_state())
    prompt = PROMPT + text + "mm"
    assert stable(other.create_completion(prompt, **GREEDY)) == stable(
        theirs.create_completion(prompt, **GREEDY)
    )
    assert other.last_speculation["prompt_kept"] == len(PROMPT) + 39


def test_ram_cache(pair):
    """llama-cpp-python's own state cache works on top."""
    ours, theirs = pair
    ours.set_cache(llama_cpp.LlamaRAMCache())
    for prompt in (PROMPT, "zzyyxx", PROMPT + "k"):
        assert stable(ours.create_completion(prompt, **GREEDY)) == stable(
            theirs.create_completion(prompt, **GREEDY)
        )


@pytest.mark.parametrize("mode", ["embedding", "logits_all"])
def test_plain_modes_are_the_original(open_llama, open_plain, tiny_ascii, mode, caplog):
    """An embedder, and a model with a score buffer, are llama-cpp-python's own, and say so when they generate."""
    ours, theirs = (
        open_llama(tiny_ascii, draft=tiny_ascii, **{mode: True}),
        open_plain(tiny_ascii, **{mode: True}),
    )
    if mode == "embedding":
        found, wanted = (
            llm.create_embedding("abc")["data"][0]["embedding"] for llm in (ours, theirs)
        )
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    else:
        assert stable(ours.create_completion(PROMPT, **GREEDY)) == stable(
            theirs.create_completion(PROMPT, **GREEDY)
        )
        assert "plainly" in caplog.text


def test_drafter_may_ask_the_same_model(open_llama, tiny_ascii):
    """A drafter that calls back into its own model gets EngineBusy logged; the answer goes on without it."""
    holder = []
    drafter = Scripted(lambda tokens, limit: ask(holder[0], list(tokens), limit).ids)
    holder.append(open_llama(tiny_ascii, draft=drafter))
    text = holder[0].create_completion(PROMPT, **GREEDY)
    assert stable(text) == stable(open_llama(tiny_ascii).create_completion(PROMPT, **GREEDY))
