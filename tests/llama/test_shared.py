"""Somebody else uses the context between our answers: guidance and others decode on it by themselves."""

import llama_cpp
import pytest
from helpers.completions import PROMPT, greedy


def decode(llm, tokens, first):
    """Decode tokens at positions first, first + 1, ... as another program would, past llama-cpp-python's own fields."""
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
def test_the_next_answer_is_right(pair, first, n):
    ours, theirs = pair
    wanted = greedy(theirs)
    assert greedy(ours) == wanted
    decode(ours, [7 + i % 5 for i in range(n)], first)
    assert greedy(ours) == wanted


def test_a_context_that_was_cleared_or_only_measured(pair):
    ours, theirs = pair
    wanted = greedy(theirs)
    for do, kept in (
        (clear, 0),
        (lambda llm: llama_cpp.llama_perf_context_reset(llm.ctx), len(PROMPT) - 1),
    ):
        greedy(ours)
        do(ours)
        assert greedy(ours) == wanted
        assert ours.last_speculation["prompt_kept"] == kept


def clear(llm):
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llm.ctx), True)
