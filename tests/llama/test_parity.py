"""Answers beside `llama_cpp.Llama`'s, counted: none differs but at a near-tie."""

import pytest
from helpers import parity


@pytest.mark.slow
def test_answers_are_the_originals(smollm2):
    """20 prompts, 2 temperatures, 3 drafts."""
    assert all(parity.compare(smollm2, parity.DRAFTS, 20, 48, 1))


@pytest.mark.parametrize("rows", [1, 4])
def test_a_choice_is_made_again_by_the_rows_it_had(open_plain, tiny_target, rows):
    """Rounds of one token each, alone or beside refused ones: the original's own choice, and no other."""
    llm = open_plain(tiny_target)
    for temperature in parity.TEMPERATURES:
        theirs = parity.answer(llm, "abc", temperature, 12)
        rounds = [(rows, [token]) for token in theirs]
        assert [
            parity.made_again(llm, "abc", temperature, rounds, at) for at in range(12)
        ] == theirs
