"""How much of prompts goes into a decode beside answers."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.engine import composing
from pyspec.engine.composing import GAP_MS, Composer, PrefillTime, share_rows
from pyspec.requests.records import COMPLETION, Record


def composer(
    row_ms=1.0, *, answers=2, reading=1, each=256, interactive=True, exact=False, gap=100.0
):
    """One for some answers that run and some prompts of 5,000 tokens; a row of either takes so many ms, as is assumed."""
    runs = [SimpleNamespace(missing=n) for n in [0] * answers + [5000] * reading]
    usual = {"ready": True, "scored": None, "masks": None}
    active = {seq: SimpleNamespace(run=run, **usual) for seq, run in enumerate(runs)}
    sizes = {"n_slots": 16, "n_batch": 512, "fill_rows": lambda n: 128 if n else 512}
    contexts = SimpleNamespace(layout=SimpleNamespace(each=each), **sizes)
    curve = SimpleNamespace(target=SimpleNamespace(table=lambda: [row_ms * n for n in range(65)]))
    return Composer(contexts, active, curve, interactive=interactive, exact=exact, gap=gap)


def rows(made):
    return sum(n for _, n in made.next()[1])


@pytest.mark.parametrize(("how", "n"), [
    ({}, 98), ({"gap": 50.0}, 48), ({"answers": 0}, 512), ({"row_ms": 0.1}, 128), ({"interactive": False}, 128),
    # slow answers may wait longer unless somebody says how long
    ({"row_ms": 10.0, "gap": None}, (GAP_MS - 20.0) / 10.0), ({"row_ms": 100.0, "gap": None}, 600.0 / 100.0),
])  # fmt: skip
def test_prompts_get_what_answers_leave_of_the_gap(how, n):
    assert rows(composer(**how)) == n


def test_prompts_get_half_of_the_time_in_any_case():
    made = composer(200.0)
    assert rows(made) == 2
    made.took(0, 2, 300.0)
    for n in (16, 40, 70, 30) * 10:
        made.took(n, 2, 300.0 + 4.0 * n)
    assert rows(made) == 75
    assert made.chunk_size(8) == 8
    assert composer(200.0, exact=True).chunk_size(64) == 64  # exact texts depend on no time


def test_no_piece_is_read_that_a_larger_one_takes_less_time_than():
    """Rows up to a tile are taken one by one; from there on a row takes less, once that was seen."""
    tile = [*[10.0 * n for n in range(64)], *[300.0 + 0.1 * n for n in range(200)]]
    made = composer(4.8, gap=400.0)
    found = []
    for _ in range(40):
        made.took(0, 2, 10.0)
        found.append(rows(made))
        made.took(found[-1], 2, 10.0 + tile[found[-1] + 2])
    assert set(found[20:]) == {125} or min(found[20:]) >= 62


def test_few_rows_beside_many_answers_tell_nothing():
    """They seem to take no time at all, or much."""
    time = PrefillTime()
    for ms in (0.0, 50.0, 0.0, 0.0):
        time.learn(14, 1, ms)
    assert time.best(14, 500, 150.0, 5.0) == 30
    assert time.best(14, 500, 4.0, 5.0) == 1


def test_prompts_of_streams_are_read_in_turn_where_people_wait():
    """Each that had begun would have a row in every decode, which costs as much as an answer's."""
    assert composer().admission_waits
    for other in ({"reading": 0}, {"interactive": False}, {"each": 0}):
        assert not composer(**other).admission_waits


def test_what_a_row_costs_is_learned():
    made = composer()
    for n in (50, 35, 40) * 10:
        made.took(n, 2, 2.0 + n * 2.5)
    assert rows(made) == pytest.approx(98 / 2.5, abs=1)
    made.took(50, 2, 20 * 127.0)
    assert 16 <= rows(made) < 60
    before = rows(made)
    made.took(50, 0, 1.0)
    assert rows(made) == before


@pytest.mark.parametrize(("known", "within", "n"), [
    ({50: 50.0, 100: 400.0}, 400.0, 61), ({50: 50.0, 100: 130.0}, 100.0, 61), ({50: 50.0, 100: 120.0}, 100.0, 83),
    ({40: 80.0}, 110.0, 55), ({40: 80.0}, 120.0, 66), # a larger piece is tried where it may be cheaper
])  # fmt: skip
def test_a_decode_in_which_rows_cost_more_is_not_made(known, within, n):
    time = PrefillTime()
    for rows, ms in known.items():
        time.learn(2, rows, ms)
    assert time.best(2, 512, within, 1.0) == n


def test_a_prompt_that_is_scored_comes_in_such_pieces_too(open_batch, monkeypatch):
    """Its rows are read in decodes of their own, for which answers wait as well."""
    pieces, score_chunk = [], composing.score_chunk

    def noted(engine, answer, most):
        before = len(answer.scored)
        ended = score_chunk(engine, answer, most)
        pieces.append(len(answer.scored) - before)
        return ended

    monkeypatch.setattr("pyspec.engine.scheduler.score_chunk", noted)
    monkeypatch.setattr(Composer, "_base", lambda *_: (0.0, 5.0))
    monkeypatch.setattr(PrefillTime, "learn", lambda *_: None)
    batch = open_batch(interactive=True, token_gap=100.0)
    running = batch.maker.answer(0, Record(id="a", prompt="ab", max_tokens=100))
    asked = {"form": COMPLETION, "echo": True, "logprobs": 0, "max_tokens": 1}
    scored = batch.maker.answer(1, Record(id="b", prompt="x" * 200, **asked))
    for job in (running, scored):
        batch.submit(job)
    assert [result.error for result in batch.stream()] == [None, None]
    assert pieces[0] == composing.SCORED_CHUNK  # nothing had begun
    assert (max(pieces[1:]), sum(pieces)) == (20, len(scored.tokens) - 1)


def test_a_decode_that_was_held_up_changes_little():
    """The machine did something else meanwhile; prompts are read on in pieces of about the same size."""
    time = PrefillTime()
    for rows in (20, 28, 24, 29) * 5:
        time.learn(2, rows, rows)
    time.learn(2, 20, 1e5)
    assert 16 <= time.best(2, 28, 30.0, 1.0) < 28


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.integers(0, 600))
def test_rows_are_shared_fairly(missing, budget):
    shares = share_rows(list(enumerate(missing)), budget)
    given_ = dict(shares)
    assert len(given_) == len(shares)
    assert sum(given_.values()) == min(budget, sum(missing))
    assert all(0 < n <= missing[seq] for seq, n in shares)
    assert budget == 0 or given_[0] >= min(missing[0], max(1, budget // 4))
