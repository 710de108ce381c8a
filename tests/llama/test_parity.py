"""Answers beside `llama_cpp.Llama`'s, counted by bench/parity.py: none differs but at a near-tie."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_answers_are_the_originals(parity, smollm2):
    """20 prompts, 2 temperatures, 3 drafts."""
    assert all(found.near for found in parity.compare(smollm2, parity.DRAFTS, 20, 48, 1))


def test_a_difference_is_told_apart(parity, open_plain, tiny_target):
    """A token that no rounding explains is not called a near-tie, and the original's own row is drawn as it was."""
    llm = open_plain(tiny_target)
    prompt = "abc"
    for temperature in parity.TEMPERATURES:
        theirs = parity.answer(llm, prompt, temperature, 12)
        ours = [*theirs[:7], (theirs[7] + 1) % 32, *theirs[8:]]
        found = parity.difference(llm, prompt, temperature, "none", ours, theirs)
        assert (found.place, found.near) == (7, False)
        text = [*llm.tokenize(prompt.encode()), *theirs[:7]]
        parity.row(llm, text, 3)
        assert parity.draw(llm, temperature, 7) == theirs[7]
