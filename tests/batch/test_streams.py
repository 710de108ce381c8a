"""Many sequences without drafts: one KV stream each, with the text that each has alone."""

import pytest
from helpers import devices
from helpers.fake_batch import texts
from helpers.tiny import F32

from pyspec.engine.composing import Composer, PrefillTime
from pyspec.engine.contexts import FEW
from pyspec.requests.records import Record

N = 20


def records(common=""):
    return [
        Record(id=str(i), prompt=common + chr(97 + i) * (1 + 3 * i), max_tokens=130 + (7 * i) % 40)
        for i in range(N)
    ]


@pytest.mark.parametrize("common", ["", "once upon a time "])
def test_text_is_that_of_one_sequence(open_batch, common):
    many = open_batch(parallel=16, **F32)
    found = texts(many, records(common))
    assert many.stats()["streams"]
    assert (many.stats()["prefix_tokens"] > 0) == bool(common)
    assert found == texts(open_batch(parallel=1, **F32), records(common))


def test_sequences_of_a_decode_follow_each_other_and_one_prompt_is_read_at_a_time(open_batch, work):
    """From the first round to the last: llama.cpp takes equal rows of such sequences together. Other prompts give a row."""
    texts(open_batch(parallel=16), records())
    assert any(len(decode) == 16 for decode in work)
    for decode in work:
        seqs = [seq for seq, _, _ in decode]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
        assert sum(n > 1 for _, n, drafted in decode if drafted < 0) <= 1


@pytest.mark.parametrize(("parallel", "draft"), [(2, "none"), (16, "lookup")])
def test_drafts_and_few_sequences_share_a_pool(open_batch, parallel, draft):
    """Unequal rows would fall apart into several passes."""
    batch = open_batch(parallel=parallel, draft=draft)
    texts(batch, records())
    assert not batch.stats()["streams"]


def test_longer_record_gets_larger_contexts(open_batch):
    batch = open_batch(parallel=8, n_ctx=700, **F32)
    late = Record(id="late", prompt="z" * 90, max_tokens=500)
    for i, record in enumerate(records()):
        batch.submit(batch.maker.answer(i, record))
    found = []
    for result in batch.stream():
        if not found:
            cells = batch.stats()["kv_cells"]
            batch.submit(batch.maker.answer(N, late))
        found.append(result)
    assert [result.id for result in found].count("late") == 1
    assert (len(found), found[-1].id, found[-1].error) == (N + 1, "late", None)
    assert [found[-1].text] == texts(open_batch(parallel=1, n_ctx=700, **F32), [late])
    assert cells == 8 * 256
    assert batch.stats()["tokens"] == sum(result.usage.completion_tokens for result in found)


@devices.for_processors(devices.STREAMS)
def test_many_at_once_cost_what_they_cost_without_drafts(open_batch, work):
    options = {"parallel": 8, "interactive": True, "length": "auto", **F32}
    alone = Record(id="alone", prompt="abc" * 20, max_tokens=60)
    many = [Record(id=str(i), prompt="abc" * (20 + i), max_tokens=12) for i in range(24)]
    decodes = []
    for draft in ("none", "auto"):
        batch = open_batch(draft=draft, **options)
        texts(batch, [alone])
        drafted = batch.stats()["drafted"]
        work.clear()
        texts(batch, many)
        decodes.append([decode for decode in work if len(decode) > FEW])
        assert batch.stats()["streams"]
    assert decodes[0] == decodes[1]
    assert drafted > 0


def test_answers_wait_for_prompts_that_came_at_once(open_batch, work):
    wanted = [Record(id=str(i), prompt=chr(97 + i) * (20 + i), max_tokens=100) for i in range(16)]
    texts(open_batch(parallel=16), wanted)
    assert work[:16] == [[(seq, 0, 0)] for seq in range(16)]
    assert work[16] == [(seq, 0, 0) for seq in range(16)]


@pytest.mark.parametrize("parallel", [4, 16])
def test_answers_go_on_while_prompts_are_read(open_batch, work, monkeypatch, parallel):
    monkeypatch.setattr(Composer, "_base", lambda *_: (0.0, 4.0))
    monkeypatch.setattr(PrefillTime, "learn", lambda *_: None)
    wanted = [
        Record(id=str(i), prompt=chr(97 + i) * (960 // parallel + i), max_tokens=150)
        for i in range(parallel)
    ]
    texts(open_batch(parallel=parallel, interactive=True, n_ctx=512, token_gap=100.0), wanted)
    begun, beside = set(), []
    for decode in work:
        rows = {seq for seq, _, drafted in decode if drafted >= 0}
        assert begun <= rows
        beside += [sum(n for _, n, _ in decode)] if begun else []
        begun |= rows
        if len(begun) == parallel:
            break
    assert len(beside) > parallel
    assert max(beside) <= 100.0 / 4.0
