"""How much of prompts goes into a decode beside answers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pyspec.batch.composing import (
    LEAST_ROWS,
    MOST_BASES_IDLE,
    MOST_MS,
    MOST_MS_IDLE,
    Composer,
    ReadingTime,
)
from pyspec.batch.scoring import PIECE, score_piece
from pyspec.requests.records import COMPLETION, Record


def composer(row_ms=1.0, *, answers=2, reading=1, each=256, interactive=True, exact=False):
    """One for some answers that run and some prompts of 5,000 tokens; a row of either takes so many ms, as is assumed."""
    missing = [0] * answers + [5000] * reading
    active = {
        seq: SimpleNamespace(run=SimpleNamespace(missing=n), ready=True, scored=None, masks=None)
        for seq, n in enumerate(missing)
    }
    contexts = SimpleNamespace(
        layout=SimpleNamespace(each=each),
        n_slots=16,
        n_batch=512,
        answering_rows=512,
        fill_rows=lambda n: 128 if n else 512,
    )
    curve = SimpleNamespace(target=SimpleNamespace(table=lambda: [row_ms * n for n in range(65)]))
    return Composer(contexts, active, curve, interactive=interactive, exact=exact)


def rows(made):
    """Prompt tokens of the next decode."""
    return sum(n for _, n in made.next()[1])


def test_prompts_get_what_answers_leave_of_the_time():
    """By what rows cost; all that fits where nothing runs."""
    assert rows(composer()) == MOST_MS - 2
    assert rows(composer(answers=0)) == 512
    assert rows(composer(0.1)) == 128
    assert rows(composer(interactive=False)) == 128


def test_some_rows_go_in_any_case():
    """A prompt is read to its end, however slow the model is, and in twice the time that answers take."""
    assert rows(composer(200.0)) == LEAST_ROWS
    assert composer(200.0).piece(8) == 8
    made = composer()
    for n in (16, 40, 7, 30) * 10:
        made.took(n, 2, 150.0 + 4.0 * n)
    assert rows(made) == pytest.approx(75, abs=2)


@pytest.mark.parametrize(("waiting", "limit"), [(0, 100.0), (8, 140.0), (12, 180.0), (40, 190.0)])
def test_the_more_sequences_stand_idle_the_more_is_read(waiting, limit):
    """Those whose prompts wait behind the one that is read, as far as there are sequences for them."""
    made = composer(10.0, answers=2)
    for n in (5, 9) * 10:
        made.took(n, 2, 20.0 + n)
    assert sum(n for _, n in made.next(waiting)[1]) == pytest.approx(limit - 20.0, abs=1)


@pytest.mark.parametrize(
    ("base", "limit"), [(40.0, MOST_MS_IDLE), (100.0, MOST_BASES_IDLE * 100.0)]
)
def test_idle_sequences_hold_up_no_answer_for_long(base, limit):
    """At most a fifth of a second, or a few times what the answers' rows take where decodes are slow."""
    made = composer()
    for n in (20, 200) * 10:
        made.took(n, 2, base + n)
    assert sum(n for _, n in made.next(12)[1]) == pytest.approx(limit - base, abs=1)


def test_many_prompts_hold_up_nobody_who_waits():
    """More than a quarter of the sequences: beside answers still, of so many rows as there is known to be time for."""
    for row_ms, wanted in ((1.0, 98), (0.1, 510)):
        made = composer(row_ms)
        assert rows(made) == min(wanted, 128)
        for n in (20, 50):
            made.took(n, 2, (2 + n) * row_ms)
        answers, reading = made.next(waiting=8)
        assert (len(answers), sum(n for _, n in reading)) == (2, wanted)
        assert rows(made) == min(wanted, 128)
    answers, reading = composer(reading=8, interactive=False).next()
    assert (answers, [n for _, n in reading]) == ([], [512])


def test_prompts_of_streams_are_read_in_turn_where_people_wait():
    """Each that had begun would have a row in every decode, which costs as much as an answer's."""
    assert composer().in_turn
    assert not composer(reading=0).in_turn
    assert not composer(interactive=False).in_turn
    assert not composer(each=0).in_turn


def test_what_a_row_costs_is_learned():
    """From decodes beside answers; one that takes ten times as long changes little, and others nothing."""
    made = composer()
    for n in (50, 20, 30) * 10:
        made.took(n, 2, 2.0 + n * 2.5)
    assert rows(made) == pytest.approx(98 / 2.5, abs=1)
    made.took(50, 2, 20 * 127.0)
    assert 16 <= rows(made) < 60
    made.took(0, 2, 1e6)
    before = rows(made)
    made.took(512, 0, 1.0)
    assert rows(made) == before


@pytest.mark.parametrize("row_ms", [0.3, 1.0, 3.0])
def test_pieces_come_to_the_time_that_they_may_take(row_ms):
    """Whatever a decode costs beside its rows."""
    made = composer()
    for _ in range(60):
        n = rows(made)
        ms = 2.0 + 20.0 + n * row_ms
        made.took(n, 2, ms)
    assert n in (128, LEAST_ROWS) or 0.9 * MOST_MS < ms < 1.1 * MOST_MS


def test_exact_texts_depend_on_no_time():
    """Their prompts are read in the same pieces each time."""
    assert composer(200.0, exact=True).piece(64) == 64


def test_a_prompt_that_is_scored_comes_in_such_pieces_too(open_batch, monkeypatch):
    """Its rows are read in decodes of their own, for which answers wait as well."""
    pieces = []

    def noted(engine, answer, most):
        before = len(answer.scored)
        ended = score_piece(engine, answer, most)
        pieces.append(len(answer.scored) - before)
        return ended

    monkeypatch.setattr("pyspec.batch.scheduler.score_piece", noted)
    monkeypatch.setattr(ReadingTime, "known", True)
    monkeypatch.setattr(ReadingTime, "line", (0.0, 5.0))
    batch = open_batch(interactive=True)
    running = batch.jobs.job(0, Record(id="a", prompt="ab", max_tokens=100))
    scored = Record(id="b", prompt="x" * 200, form=COMPLETION, echo=True, max_tokens=1)
    scored = batch.jobs.job(1, scored)
    scored.alternatives = 0
    scored.options = replace(scored.options, keep_rows=True, prompt_rows=True)
    for job in (running, scored):
        batch.submit_job(job)
    assert [result.error for result in batch.stream()] == [None, None]
    assert pieces[0] == PIECE  # nothing had begun
    assert (max(pieces[1:]), sum(pieces)) == (20, len(scored.tokens) - 1)


def test_a_decode_that_was_held_up_changes_little():
    """The machine did something else meanwhile; prompts are read on in pieces of about the same size."""
    time = ReadingTime()
    for rows in (10, 20, 30, 40) * 5:
        time.learn(rows, 5.0 + rows)
    time.learn(20, 1e5)
    base, row = time.line
    assert base + 20 * row < 40.0
