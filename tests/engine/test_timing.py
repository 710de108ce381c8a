"""Times of decodes that no round has shown, taken behind an answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.waiting import DEADLINE_S

from pyspec import SpeculativeLlama
from pyspec.draft.row_times import SURE
from pyspec.engine import timing
from pyspec.engine.timing import ROWS, time_unseen, verify_ms
from pyspec.sampling.chain import Sampling

pytestmark = pytest.mark.usefixtures("own_cache")

GREEDY = Sampling(temperature=0.0)


def _answered(path: Path, draft: Path, length: str = "auto") -> SpeculativeLlama:
    llm = SpeculativeLlama(
        str(path),
        draft=str(draft),
        length=length,
        n_ctx=256,
        n_threads=1,
        verbose=False,
        trust=True,
    )
    llm.create_completion("abcabc" * 8, max_tokens=24, temperature=0)
    return llm


def test_counts_that_no_round_had_are_timed(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards each count is known well enough to be kept, and so is a step of the draft."""
    monkeypatch.setattr(timing, "_BUDGET_S", DEADLINE_S)
    llm = _answered(tiny_target, tiny_draft)
    time_unseen(llm, llm.curve)
    assert all(llm.curve.target.count(rows) >= SURE for rows in ROWS[1:])
    assert llm.curve.draft.timed_here(1)
    llm.close()


def test_a_row_is_timed_however_little_time_there_is(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may stall before the first: what the others are scaled by is known all the same."""
    llm = _answered(tiny_target, tiny_draft)
    before = {rows: llm.curve.target.count(rows) for rows in ROWS}
    monkeypatch.setattr(timing, "_BUDGET_S", -1.0)
    time_unseen(llm, llm.curve)
    assert {rows: llm.curve.target.count(rows) for rows in ROWS} == before
    llm.close()


def test_what_is_known_is_not_timed_again(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call finds nothing to do."""
    monkeypatch.setattr(timing, "_BUDGET_S", DEADLINE_S)
    llm = _answered(tiny_target, tiny_draft)
    time_unseen(llm, llm.curve)
    known = {rows: llm.curve.target.count(rows) for rows in ROWS}
    time_unseen(llm, llm.curve)
    assert {rows: llm.curve.target.count(rows) for rows in ROWS} == known
    llm.close()


def test_texts_stay_what_they_were(tiny_target: Path, tiny_draft: Path) -> None:
    """The answer to the same prompt afterwards is the one of a fresh model."""
    llm = _answered(tiny_target, tiny_draft)
    time_unseen(llm, llm.curve)
    again = llm.create_completion("cab" * 5, max_tokens=24, temperature=0)["choices"][0]["text"]
    llm.close()
    other = _answered(tiny_target, tiny_draft)
    fresh = other.create_completion("cab" * 5, max_tokens=24, temperature=0)["choices"][0]["text"]
    other.close()
    assert again == fresh


def test_a_verify_takes_time(tiny_target: Path, tiny_draft: Path) -> None:
    llm = _answered(tiny_target, tiny_draft)
    text = llm.input_ids[: llm.n_tokens].tolist()
    engine = llm.assembly.engine
    assert all(verify_ms(engine, text, len(text) - 8, rows) > 0.0 for rows in (1, 3, 8))
    llm.close()
