"""Conversations whose sequence others took are kept in memory, by owner, and not read again when they come back."""

from __future__ import annotations

import pytest
from answers import counters

from pyspec.batch.parked import MIB, ParkedTexts, room_for_parked
from pyspec.engine.handle import Engine, Role
from pyspec.requests.records import Record

EXACT = {"flash_attn": False, "type_k": 0, "type_v": 0}
TALES = [
    f"{name} went to the sea and told nobody of it for a long time"
    for name in ("ann", "bob", "cid")
]


@pytest.fixture
def read(monkeypatch):
    """Rows that went to the target, by decode."""
    rows = []
    verify = Engine.verify

    def counted(self, work):
        before = counters(self).rows[0]
        verify(self, work)
        rows.append(counters(self).rows[0] - before)

    monkeypatch.setattr(Engine, "verify", counted)
    return rows


@pytest.fixture
def open_served(open_batch):
    """A `Batch` with one sequence for people who wait."""

    def open_(**options):
        return open_batch(interactive=True, parallel=1, max_tokens=6, **{**EXACT, **options})

    return open_


def say(batch, prompt, owner=""):
    """The answer's text."""
    job = batch.jobs.job(0, Record(id="a", prompt=prompt))
    job.owner = owner
    batch.submit_job(job)
    (found,) = batch.stream()
    assert found.error is None
    return found.text


@pytest.mark.parametrize("draft", ["none", "lookup", "model"])
def test_a_conversation_that_comes_back_is_not_read_again(open_served, read, tiny_draft, draft):
    """Though others had its sequence meanwhile; the text is what it was."""
    batch = open_served(draft=tiny_draft if draft == "model" else draft, cache_ram=4)
    told = [say(batch, tale) for tale in TALES]
    read.clear()
    assert [say(batch, tale) for tale in TALES] == told
    assert sum(read) <= len(TALES) * (6 * 5 + 1)
    assert max(read) <= 5  # a draft and its token: none of the prompt


def test_a_draft_models_memory_comes_back_too(open_served, tiny_draft):
    """It reads no prompt again before it drafts."""
    batch = open_served(draft=tiny_draft, cache_ram=4)
    spent = []
    for _ in range(2):
        before = sum(spent)
        for tale in TALES:
            say(batch, tale)
        spent.append(counters(batch._contexts.engine).rows[1] - before)
    assert spent[1] < 30 < sum(len(tale) for tale in TALES) < spent[0]


def test_without_memory_it_is(open_served, read):
    """As with a share of 0."""
    batch = open_served(cache_ram=0)
    told = [say(batch, tale) for tale in TALES]
    read.clear()
    assert [say(batch, tale) for tale in TALES] == told
    assert sum(read) > sum(len(batch.target.tokenize(tale.encode())) for tale in TALES) - 3


def test_owners_are_apart(open_served, read):
    """How soon an answer comes tells nobody what another said."""
    batch = open_served(cache_ram=4)
    first = say(batch, TALES[0], "one")
    say(batch, TALES[1], "one")
    read.clear()
    assert say(batch, TALES[0], "two") == first
    assert max(read) >= len(batch.target.tokenize(TALES[0].encode())) - 1
    read.clear()
    assert say(batch, TALES[0], "one") == first
    assert max(read) == 1


class Held:
    """An engine whose sequence 0 holds any text."""

    def held(self, role, seq):
        """Tokens."""
        return 100


@pytest.fixture
def store(monkeypatch):
    """Room for three texts of 10 bytes."""
    monkeypatch.setattr("pyspec.batch.parked.state_of", lambda *_: b"0123456789")
    return ParkedTexts(Held(), {Role.TARGET: 0}, 30)


def begun(store, text, owner="one"):
    """What is kept that begins like a text; it stays."""
    found = store.fetch([*text, 0], owner, 1)
    if found is not None:
        store._texts.append(found)
    return found and found.tokens


def test_the_least_recently_parked_go_first(store):
    """As many as it takes; a text that fits by no means is not kept."""
    for first in range(5):
        store.park(0, [first, 7, 8], "one")
    assert [begun(store, [first]) is not None for first in range(5)] == [False] * 2 + [True] * 3
    store._most = 9
    store.park(0, [9, 9], "one")
    assert store._texts == []


def test_a_text_that_grew_takes_its_own_place(store):
    """Its beginning says nothing more; of another owner's it is no part."""
    store.park(0, [1, 2], "one")
    store.park(0, [1, 2], "two")
    store.park(0, [1, 2, 3], "one")
    store.park(0, [1, 2], "one")
    assert [(each.owner, each.tokens) for each in store._texts] == [
        ("two", [1, 2]),
        ("one", [1, 2, 3]),
    ]


def test_the_longest_beginning_is_fetched(store):
    """Of at least so many tokens; the prompt's last token is never held."""
    for text in ([1, 2, 3, 4], [1, 2, 9], [5]):
        store.park(0, text, "one")
    assert store.fetch([1, 2, 3, 4], "one", 4) is None
    assert store.fetch([1, 2, 3, 4], "two", 1) is None
    assert store.fetch([1, 2, 3, 4], "one", 3).tokens == [1, 2, 3, 4]
    assert store.fetch([1, 2, 3, 4], "one", 2).tokens == [1, 2, 9]


def test_a_share_of_the_free_memory_is_the_default(monkeypatch):
    """What was asked for is MiB."""
    assert room_for_parked(3) == 3 * MIB
    free = type("Memory", (), {"available": 800})
    monkeypatch.setattr("pyspec.batch.parked.psutil.virtual_memory", lambda: free)
    assert room_for_parked(None) == 100
