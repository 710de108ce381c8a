"""What a `SpeculativeLlama` keeps between calls, and what its user may do to it meanwhile."""

from __future__ import annotations

import llama_cpp
from helpers.answers import counters
from helpers.completions import GREEDY, PROMPT, stable


def answer(llm, prompt):
    """A greedy answer, as far as it is the same each time."""
    return stable(llm.create_completion(prompt, **GREEDY))


def kept(llm):
    """Prompt tokens that the last call found in the KV."""
    return llm.last_speculation["prompt_kept"]


def test_prefix_is_kept_between_calls(open_llama, tiny_ascii):
    """A prompt that goes on from the last answer reads only what is new; the draft's KV too is kept."""
    llm = open_llama(tiny_ascii, draft=tiny_ascii)
    text = llm.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    assert kept(llm) == 0
    before = counters(llm.assembly.engine).rows
    again = llm.create_completion(PROMPT + text + "xy", **GREEDY)
    assert kept(llm) == len(PROMPT) + 39
    rows = [after - was for after, was in zip(counters(llm.assembly.engine).rows, before)]
    assert rows[0] == 3 - 1 + again["speculation"]["rounds"] + again["speculation"]["drafted"]
    assert rows[1] <= 3 + 2 + 40
    assert stable(again) == stable(
        open_llama(tiny_ascii).create_completion(PROMPT + text + "xy", **GREEDY)
    )


def test_prefix_after_a_stop_string(pair):
    """After a stop string cut the answer, the next call is right and keeps what it shares."""
    ours, theirs = pair
    full = theirs.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    cut = ours.create_completion(PROMPT, stop=[full[10:12]], **GREEDY)["choices"][0]["text"]
    prompt = PROMPT + cut + "qqq"
    assert answer(ours, prompt) == answer(theirs, prompt)
    assert kept(ours) == len(PROMPT + cut)


def test_prefix_after_a_stream_was_dropped(pair):
    """A stream that was not read to its end leaves a usable cache."""
    ours, theirs = pair
    stream = ours.create_completion(PROMPT, stream=True, **GREEDY)
    next(stream)
    next(stream)
    del stream
    assert answer(ours, PROMPT) == answer(theirs, PROMPT)
    assert kept(ours) == len(PROMPT) - 1


def test_reset_forgets(pair):
    """reset() has the next call read its whole prompt."""
    ours, _ = pair
    first = answer(ours, PROMPT)
    ours.reset()
    assert answer(ours, PROMPT) == first
    assert kept(ours) == 0


def test_eval_by_the_user_is_noticed(pair):
    """Tokens that the user evaluated by hand are found in the cache where they fit, and dropped where they do not."""
    ours, theirs = pair
    ours.create_completion(PROMPT, **GREEDY)
    ours.reset()
    ours.eval(ours.tokenize(b"abcabdxyz"))
    assert answer(ours, "abcabdxyzabc") == answer(theirs, "abcabdxyzabc")
    assert kept(ours) == 9
    ours.eval([5, 6, 7])
    assert answer(ours, PROMPT) == answer(theirs, PROMPT)
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


def test_state_of_a_fresh_object(pair):
    """It brings back that nothing is held."""
    ours, _ = pair
    fresh = ours.save_state()
    first = answer(ours, PROMPT)
    ours.load_state(fresh)
    assert answer(ours, PROMPT) == first
    assert kept(ours) == 0


def test_ram_cache(pair):
    """llama-cpp-python's own state cache works on top."""
    ours, theirs = pair
    ours.set_cache(llama_cpp.LlamaRAMCache())
    for prompt in (PROMPT, "zzyyxx", PROMPT + "k"):
        assert answer(ours, prompt) == answer(theirs, prompt)
