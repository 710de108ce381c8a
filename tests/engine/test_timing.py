"""Times of decodes that no round has shown, taken behind an answer."""

from __future__ import annotations

import pytest
from helpers.waiting import DEADLINE_S

from pyspec.draft.row_times import SURE
from pyspec.engine import timing
from pyspec.engine.timing import ROWS, time_unseen, verify_ms

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def answered(open_llama, tiny_target, tiny_draft):
    """Makes models that have answered once."""

    def made():
        llm = open_llama(tiny_target, draft=tiny_draft, length="auto", n_threads_batch=None)
        text_of(llm, "abcabc" * 8)
        return llm

    return made


def text_of(llm, prompt):
    return llm.create_completion(prompt, max_tokens=24, temperature=0)["choices"][0]["text"]


def counts_of(llm):
    return {rows: llm.curve.target.count(rows) for rows in ROWS}


def test_counts_that_no_round_had_are_timed(answered, monkeypatch):
    """Afterwards each count is known well enough to be kept, and so is a step of the draft; a second call has nothing to do."""
    monkeypatch.setattr(timing, "_BUDGET_S", DEADLINE_S)
    llm = answered()
    time_unseen(llm, llm.curve)
    known = counts_of(llm)
    assert all(known[rows] >= SURE for rows in ROWS[1:])
    assert llm.curve.draft.timed_here(1)
    time_unseen(llm, llm.curve)
    assert counts_of(llm) == known


def test_nothing_is_timed_where_there_is_no_time(answered, monkeypatch):
    llm = answered()
    before = counts_of(llm)
    monkeypatch.setattr(timing, "_BUDGET_S", -1.0)
    time_unseen(llm, llm.curve)
    assert counts_of(llm) == before


def test_texts_stay_what_they_were(answered):
    """The answer to the same prompt afterwards is the one of a fresh model."""
    llm = answered()
    time_unseen(llm, llm.curve)
    assert text_of(llm, "cab" * 5) == text_of(answered(), "cab" * 5)


def test_a_verify_takes_time(answered):
    llm = answered()
    text = llm.input_ids[: llm.n_tokens].tolist()
    engine = llm.assembly.engine
    assert all(verify_ms(engine, text, len(text) - 8, rows) > 0.0 for rows in (1, 3, 8))
