"""A coupled draft in the engine: fed with states, rolled back, fed anew."""

from __future__ import annotations

from answers import GREEDY


def answer(llm, text, n):
    """Ids of a greedy answer."""
    prompt = llm.tokenize(text, add_bos=False)
    return [t.id for step in llm.steps(prompt, GREEDY, max_tokens=n) for t in step.tokens]


def test_without_matrices_it_drafts_as_the_target(open_llama, tiny_target, coupled):
    """Fed with embeddings alone, a copy of the target is accepted everywhere."""
    llm = open_llama(tiny_target, draft=coupled)
    answer(llm, b"abcabd", 24)
    block = llm.last_speculation
    assert block["accepted"] == block["verified"] > 12


def test_text_is_plain_greedy(open_llama, tiny_target, coupled):
    """What it drafts never changes a strict answer, over several texts that begin alike."""
    llm, plain = open_llama(tiny_target, draft=coupled), open_llama(tiny_target)
    for text in (b"abcabd", b"abcabdabc", b"abcabd", b"xyz", b"abcabdq"):
        assert answer(llm, text, 30) == answer(plain, text, 30)


def test_rows_fed_anew_are_counted_apart(open_llama, tiny_target, coupled):
    """Accepted rows are decoded again with the target's states, and counted as such."""
    llm = open_llama(tiny_target, draft=coupled)
    answer(llm, b"abcabd", 24)
    assert llm._assembly.session.engine.counters().refed == llm.last_speculation["accepted"]
