"""What a `SpeculativeLlama` keeps between calls, and what its user, or another program on its context, may do to it meanwhile."""

import llama_cpp
import pytest
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


def decode(llm, tokens, first):
    """Decode tokens at positions first, first + 1, ... as guidance does, past llama-cpp-python's own fields."""
    llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(llm.ctx), 0, first, -1)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, first + i, 1, 0
        batch.logits[i] = i == len(tokens) - 1
    assert llama_cpp.llama_decode(llm.ctx, batch) == 0
    llama_cpp.llama_batch_free(batch)
    assert llama_cpp.llama_get_logits_ith(llm.ctx, -1)  # as anybody would, to read the result


@pytest.mark.parametrize("first", [0, 3, 45])
@pytest.mark.parametrize("n", [2, 46, 100])
def test_an_answer_behind_another_programs_decode_is_right(pair, first, n):
    ours, theirs = pair
    wanted = greedy(theirs)
    assert greedy(ours) == wanted
    decode(ours, [7 + i % 5 for i in range(n)], first)
    assert greedy(ours) == wanted


def test_a_context_that_was_cleared_or_only_measured(pair):
    ours, theirs = pair
    wanted = greedy(theirs)
    for do, kept in (
        (lambda llm: llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llm.ctx), True), 0),
        (lambda llm: llama_cpp.llama_perf_context_reset(llm.ctx), len(PROMPT) - 1),
    ):
        greedy(ours)
        do(ours)
        assert greedy(ours) == wanted
        assert ours.last_speculation["prompt_kept"] == kept
