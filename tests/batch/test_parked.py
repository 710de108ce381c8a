"""Conversations whose sequence others took are kept in memory, by owner, and not read again when they come back."""

import pytest
from helpers.answers import counters
from helpers.tiny import F32

from pyspec.requests.records import Record

TALES = [
    f"{name} went to the sea and told nobody of it for a long time"
    for name in ("ann", "bob", "cid")
]


@pytest.fixture
def open_served(open_batch):
    """A `Batch` with one sequence for people who wait."""

    def open_(**options):
        return open_batch(interactive=True, parallel=1, max_tokens=6, **{**F32, **options})

    return open_


def say(batch, prompt, owner=""):
    job = batch.maker.answer(0, Record(id="a", prompt=prompt))
    job.owner = owner
    batch.submit(job)
    (found,) = batch.stream()
    assert found.error is None
    return found.text


@pytest.mark.parametrize("draft", ["none", "lookup", "model"])
def test_a_conversation_that_comes_back_is_not_read_again(open_served, read, tiny_draft, draft):
    """Though others had its sequence meanwhile; the text is what it was. Without memory it is read."""
    for memory in (4, 0):
        batch = open_served(draft=tiny_draft if draft == "model" else draft, cache_ram=memory)
        told = [say(batch, tale) for tale in TALES]
        read.clear()
        assert [say(batch, tale) for tale in TALES] == told
        if memory:
            assert sum(read) <= len(TALES) * (6 * 5 + 1)
            assert max(read) <= 5  # a draft and its token: none of the prompt
    assert sum(read) > sum(len(batch.target.tokenize(tale.encode())) for tale in TALES) - 3


def test_a_draft_models_memory_comes_back_too(open_served, tiny_draft):
    batch = open_served(draft=tiny_draft, cache_ram=4)
    spent = []
    for _ in range(2):
        before = sum(spent)
        for tale in TALES:
            say(batch, tale)
        spent.append(counters(batch._contexts.engine).rows[1] - before)
    assert spent[1] < 30 < sum(len(tale) for tale in TALES) < spent[0]
