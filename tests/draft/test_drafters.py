"""Drafters in Python: llama-cpp-python's draft models, and prompt lookup against a slow twin."""

import numpy as np
from helpers.texts import slow_draft
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from pyspec.draft.lookup import ForeignDrafter, LookupDrafter


def test_ids_come_through():
    """The model gets the text as an array of C ints and its answer becomes plain ints, no more than were asked for."""
    seen = []

    def model(ids):
        seen.append((ids.dtype, ids.tolist()))
        return np.arange(4, 13, dtype=np.intc)

    proposal = ForeignDrafter(model).propose(0, [1, 2, 3], 3)
    assert seen == [(np.dtype(np.intc), [1, 2, 3])]
    assert proposal.tokens == [4, 5, 6]
    assert all(type(token) is int for token in proposal.tokens)


def test_prompt_lookup_of_llama_cpp_python():
    """Its own prompt lookup drafts through the wrapper and lends it its name."""
    drafter = ForeignDrafter(LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=3))
    assert drafter.name == "LlamaPromptLookupDecoding"
    assert drafter.propose(0, [1, 2, 3, 4, 1, 2], 3).tokens == [3, 4, 1]


texts = st.lists(st.integers(0, 3), max_size=60)


@given(texts, st.integers(1, 20))
def test_draft_is_the_slow_twins(text, limit):
    proposal = LookupDrafter().propose(0, text, limit)
    wanted = slow_draft([text], text, limit)
    assert (list(proposal.tokens), proposal.match_length) == wanted[:2]


@given(texts, texts, st.integers(0, 40))
def test_growing_and_replaced_texts_draft_as_fresh_ones(first, second, shared):
    drafter = LookupDrafter()
    drafter.propose(0, first, 5)
    other = first[:shared] + second
    assert drafter.propose(0, other, 5) == LookupDrafter().propose(0, other, 5)
    grown = other + second
    assert drafter.propose(0, grown, 5) == LookupDrafter().propose(0, grown, 5)


def test_sequences_are_kept_apart_and_begin_anew():
    drafter = LookupDrafter()
    drafter.propose(0, [1, 2, 3, 1, 2], 3)
    assert not drafter.propose(1, [1, 2], 3).tokens
    assert list(drafter.propose(0, [1, 2, 3, 1, 2], 1).tokens) == [3]
    drafter.begin(0)
    assert list(drafter.propose(0, [4, 5, 6, 4, 5], 1).tokens) == [6]


def test_a_text_that_moves_is_known_under_its_new_number():
    """With what was expected of it; the text that had the number is over."""
    drafter = LookupDrafter()
    drafter.begin(5)
    drafter.expect(5, [7, 8, 9, 10])
    drafter.propose(1, [4, 4, 4], 2)
    drafter.move(5, 1)
    assert drafter.propose(1, [7, 8, 9], 2).tokens == [10]


def test_repetition_goes_on_with_itself():
    """Past the end of the text the repeated stretch is drafted again, as far as there is room."""
    for room, drafted in ((5, [1, 2, 1, 2, 1]), (0, [])):
        assert list(LookupDrafter().propose(0, [1, 2, 1, 2, 1, 2], room).tokens) == drafted
