"""Times of decodes that no round has shown, taken behind an answer."""

from __future__ import annotations

from pathlib import Path

from pyspec import SpeculativeLlama
from pyspec.engine.timing import ROWS, time_unseen, verify_ms
from pyspec.policy.cost import SURE
from pyspec.sampling import Sampling

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


def test_counts_that_no_round_had_are_timed(tiny_target: Path, tiny_draft: Path) -> None:
    """Afterwards each count is known well enough to be kept, and so is a step of the draft."""
    llm = _answered(tiny_target, tiny_draft)
    time_unseen(llm, llm.curve)
    assert all(llm.curve.target.count(rows) >= SURE for rows in ROWS[1:])
    assert llm.curve.draft.timed_here(1)
    llm.close()


def test_what_is_known_is_not_timed_again(tiny_target: Path, tiny_draft: Path) -> None:
    """A second call finds nothing to do."""
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
    """Of any count, at any place of a text."""
    llm = _answered(tiny_target, tiny_draft)
    text = llm.input_ids[: llm.n_tokens].tolist()
    engine = llm.assembly.engine
    assert all(verify_ms(engine, text, len(text) - 8, rows) > 0.0 for rows in (1, 3, 8))
    llm.close()


def test_plain_decoding_is_known_of_an_answer_that_was_drafted(
    tiny_target: Path, tiny_sliding: Path
) -> None:
    """A draft that is always right leaves no plain rounds: then rows are timed behind the first answer, and only there."""
    for path in (tiny_target, tiny_sliding):
        llm = _answered(path, path, "fixed:3")
        assert llm.last_speculation["choice"]["rounds_plain"] < SURE
        assert llm.last_speculation["plain"]["from"] == "curve"
        assert "plain decoding" in llm.last_speculation.sentence
        known = llm.curve.target.count(1)
        llm.create_completion("abcabc" * 8, max_tokens=24, temperature=0)
        assert llm.curve.target.count(1) - known < SURE
        llm.close()


def test_the_text_goes_on_behind_what_was_timed(tiny_target: Path) -> None:
    """The context still holds the answer: more of it is read from there, and is what a fresh model says."""
    llm = _answered(tiny_target, tiny_target, "fixed:3")
    text = llm.session.tokens
    assert llm.session.held == llm.n_tokens == len(text) - 1
    more = [step.tokens[0].id for step in llm.steps(text, GREEDY, max_tokens=8)]
    assert llm.last_speculation["prompt_kept"] >= len(text) - 1
    llm.reset()
    fresh = [step.tokens[0].id for step in llm.steps(text, GREEDY, max_tokens=8)]
    llm.close()
    assert more == fresh
