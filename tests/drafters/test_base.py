"""Draft models of llama-cpp-python as drafters."""

from __future__ import annotations

import numpy as np
import pytest
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from pyspec.drafters import Drafter, ForeignDrafter


def test_ids_come_through():
    """The model gets the text as an array of C ints and its answer becomes plain ints."""
    seen = []

    def model(ids):
        seen.append((ids.dtype, ids.tolist()))
        return np.array([4, 5, 6], dtype=np.intc)

    proposal = ForeignDrafter(model).propose(0, [1, 2, 3], 10)
    assert seen == [(np.dtype(np.intc), [1, 2, 3])]
    assert proposal.tokens == [4, 5, 6]
    assert all(type(token) is int for token in proposal.tokens)


def test_more_than_asked_is_cut():
    """Such models do not know the limit."""
    assert ForeignDrafter(lambda _ids: np.arange(9)).propose(0, [1], 4).tokens == [0, 1, 2, 3]


def test_prompt_lookup_of_llama_cpp_python():
    """Its own prompt lookup drafts through the wrapper and lends it its name."""
    drafter = ForeignDrafter(LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=3))
    assert drafter.name == "LlamaPromptLookupDecoding"
    assert drafter.propose(0, [1, 2, 3, 4, 1, 2], 3).tokens == [3, 4, 1]


def test_drafter_is_abstract():
    """A drafter without propose() cannot be made."""
    with pytest.raises(TypeError):
        Drafter()


def test_hearing_is_optional():
    """observe() does nothing unless a drafter wants to hear."""
    assert ForeignDrafter(lambda ids: ids).observe(0, [1], 1, 1) is None
