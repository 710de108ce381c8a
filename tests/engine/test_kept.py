"""What is kept of texts whose sequence others took, for whom, and how much of it; and which waiting job goes next."""

import pytest

from pyspec.engine.answer import Answer, AnswerQueue
from pyspec.engine.handle import Role
from pyspec.engine.kept import MIB, ParkedTexts, room_for_parked
from pyspec.engine.options import AnswerOptions
from pyspec.requests.records import Record
from pyspec.text.answer import AnswerReader


class Held:
    """An engine whose sequence 0 holds any text."""

    def held(self, role, seq):
        return 100

    def set_tokens(self, seq, tokens, held):
        pass


@pytest.fixture
def store(monkeypatch):
    """Room for three texts of 10 bytes."""
    monkeypatch.setattr("pyspec.engine.kept.state_of", lambda *_: b"0123456789")
    return ParkedTexts(Held(), {Role.TARGET: 0}, 30)


def begun(store, text, owner="one"):
    found = store.fetch([*text, 0], owner, 1)
    return found and found.tokens


def test_the_least_recently_parked_go_first(store):
    for first in range(5):
        store.park(0, [first, 7, 8], "one")
    assert [begun(store, [first]) is not None for first in range(5)] == [False] * 2 + [True] * 3
    store._most = 9
    store.park(0, [9, 9], "one")
    assert store._texts == []


def test_a_text_that_grew_takes_its_own_place(store):
    store.park(0, [1, 2], "one")
    store.park(0, [1, 2], "two")
    store.park(0, [1, 2, 3], "one")
    store.park(0, [1, 2], "one")
    found = [(each.owner, each.tokens) for each in store._texts]
    assert found == [("two", [1, 2]), ("one", [1, 2, 3])]


@pytest.mark.parametrize("room", [False, True])
def test_a_text_that_finds_no_room_stays(store, monkeypatch, room):
    monkeypatch.setattr("pyspec.engine.kept.put_state", lambda *_: room)
    store.park(0, [1, 2, 3], "one")
    assert store.restore(store.fetch([1, 2, 9], "one", 2), 0, [1, 2, 9]) == (2 if room else 0)
    assert begun(store, [1, 2]) == (None if room else [1, 2, 3])


def test_a_share_of_the_free_memory_is_the_default(monkeypatch):
    """What was asked for is MiB."""
    assert room_for_parked(3) == 3 * MIB
    free = type("Memory", (), {"available": 800})
    monkeypatch.setattr("pyspec.engine.kept.psutil.virtual_memory", lambda: free)
    assert room_for_parked(None) == 100


def queue(*needs, **options):
    """Jobs of these many cells in the order of their coming, for one slot."""
    made = AnswerQueue(100, 1, **options)
    for index, need in enumerate(needs):
        record, reader = Record(id=f"{index}", prompt="a"), AnswerReader(lambda _: b"")
        made.add(Answer(index, record, [1], AnswerOptions(), reader, need))
    return made


@pytest.mark.parametrize("at", range(3))
def test_a_cancelled_one_leaves_the_queue_wherever_it_stands(at):
    """None of them has begun, so not all that they will have can be compared."""
    made = queue(10, 10, 10)
    others = [*made.answers]
    gone = others.pop(at)
    gone.cancelled = True
    assert made.take_ended(reads=True) == [gone]
    assert made.answers == others


@pytest.mark.parametrize(("in_order", "first"), [(False, 50), (True, 10)])
def test_the_longest_goes_first_or_the_one_that_came_first(in_order, first):
    job = queue(10, 50, 20, in_order=in_order).take(lambda _: True)
    assert job is not None
    assert job.need == first


def test_one_that_does_not_fit_is_passed_by_a_few_times():
    """Then it is waited for: short ones would keep it out for ever."""
    made, taken = queue(1000, *[1] * 50), 0
    while made.take(lambda job: job.need == 1) is not None:
        taken += 1
    assert 0 < taken < 50
