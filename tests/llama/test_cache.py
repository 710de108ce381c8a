"""What a `SpeculativeLlama` keeps between calls, and what its user may do to it meanwhile."""

import llama_cpp
from helpers.answers import counters
from helpers.completions import GREEDY, PROMPT, greedy


def kept(llm):
    """Prompt tokens that the last call found in the KV."""
    return llm.last_speculation["prompt_kept"]


def test_prefix_is_kept_between_calls(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, draft=tiny_ascii)
    text = llm.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    assert kept(llm) == 0
    before = counters(llm.assembly.engine).rows
    again = greedy(llm, PROMPT + text + "xy")
    assert kept(llm) == len(PROMPT) + 39
    block = llm.last_speculation
    rows = [after - was for after, was in zip(counters(llm.assembly.engine).rows, before)]
    assert rows[0] == 3 - 1 + block["rounds"] + block["drafted"]
    assert rows[1] <= 3 + 2 + 40
    assert again == greedy(open_llama(tiny_ascii), PROMPT + text + "xy")


def test_prefix_after_a_stop_string(pair):
    ours, theirs = pair
    full = theirs.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    cut = ours.create_completion(PROMPT, stop=[full[10:12]], **GREEDY)["choices"][0]["text"]
    prompt = PROMPT + cut + "qqq"
    assert greedy(ours, prompt) == greedy(theirs, prompt)
    assert kept(ours) == len(PROMPT + cut)


def test_prefix_after_a_stream_was_dropped(pair):
    ours, theirs = pair
    stream = ours.create_completion(PROMPT, stream=True, **GREEDY)
    next(stream)
    next(stream)
    del stream
    assert greedy(ours) == greedy(theirs)
    assert kept(ours) == len(PROMPT) - 1


def test_reset_and_a_fresh_state_forget(pair):
    ours, _ = pair
    fresh = ours.save_state()
    first = greedy(ours)
    for forget in (ours.reset, lambda: ours.load_state(fresh)):
        forget()
        assert greedy(ours) == first
        assert kept(ours) == 0


def test_eval_by_the_user_is_noticed(pair):
    ours, theirs = pair
    ours.create_completion(PROMPT, **GREEDY)
    ours.reset()
    ours.eval(ours.tokenize(b"abcabdxyz"))
    assert greedy(ours, "abcabdxyzabc") == greedy(theirs, "abcabdxyzabc")
    assert kept(ours) == 9
    ours.eval([5, 6, 7])
    assert greedy(ours) == greedy(theirs)
    assert kept(ours) == len(PROMPT) - 1


def test_eval_and_sample_work_as_in_the_original(pair):
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


def test_ram_cache(pair):
    ours, theirs = pair
    ours.set_cache(llama_cpp.LlamaRAMCache())
    for prompt in (PROMPT, "zzyyxx", PROMPT + "k"):
        assert greedy(ours, prompt) == greedy(theirs, prompt)
