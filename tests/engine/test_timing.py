"""Times of decodes that no round has shown, taken behind an answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import tiny_positions
from helpers.waiting import DEADLINE_S

from pyspec import SpeculativeLlama
from pyspec.engine import timing
from pyspec.engine.timing import ROWS, time_unseen, verify_ms
from pyspec.policy.row_times import SURE
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


@pytest.fixture
def plain_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the text was at each row that was timed behind an answer."""
    rows: list[int] = []
    monkeypatch.setattr(
        timing,
        "verify_ms",
        lambda engine, text, *at: rows.append(len(text)) or verify_ms(engine, text, *at),
    )
    return rows


def test_plain_decoding_is_timed_behind_an_answer_that_was_drafted(
    tiny_target: Path, tiny_sliding: Path, plain_rows: list[int]
) -> None:
    """A draft that is always right leaves no plain rounds: then rows are timed behind the first answer, and only there."""
    for path in (tiny_target, tiny_sliding):
        plain_rows.clear()
        llm = _answered(path, path, "fixed:3")
        assert plain_rows == []  # whoever read it left at the last token that was allowed
        for _ in range(2):
            list(llm.steps(llm.tokenize(b"abcabc" * 8), GREEDY, max_tokens=24))
            assert llm.last_speculation["choice"]["rounds_plain"] < SURE
            assert plain_rows == [len(llm.session.tokens)] * SURE
        llm.close()


def test_the_text_goes_on_behind_what_was_timed(tiny_target: Path, plain_rows: list[int]) -> None:
    """The context still holds the answer: more of it is read from there, and is what a fresh model says."""
    llm = _answered(tiny_target, tiny_target, "fixed:3")
    list(llm.steps(llm.tokenize(b"abcabc" * 8), GREEDY, max_tokens=24))
    text = llm.session.tokens
    assert plain_rows == [len(text)] * SURE
    assert llm.session.held == llm.n_tokens == len(text) - 1
    more = [step.tokens[0].id for step in llm.steps(text, GREEDY, max_tokens=8)]
    assert llm.last_speculation["prompt_kept"] >= len(text) - 1
    llm.reset()
    fresh = [step.tokens[0].id for step in llm.steps(text, GREEDY, max_tokens=8)]
    llm.close()
    assert more == fresh


def test_nothing_is_decoded_where_no_position_is_left(
    tmp_path: Path, plain_rows: list[int]
) -> None:
    """Behind a text that fills a model's learned positions llama.cpp would end the process."""
    path = tmp_path / "gpt2.gguf"
    path.write_bytes(tiny_positions.gpt2(100).build())
    with SpeculativeLlama(
        str(path), draft=str(path), length="fixed:3", verbose=False, trust=True
    ) as llm:
        steps = list(llm.steps(llm.tokenize(b"abcabc"), GREEDY))
        assert steps[-1].finish_reason == "context"
        assert llm.last_speculation["verified"] > 0
    assert plain_rows == []
