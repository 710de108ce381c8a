"""What was said before: the index against a slow twin, limits of number and age, owners, and what is kept on disk."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from helpers.texts import slow_draft
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.errors import OptionError
from pyspec.lookup.drafters import LookupDrafter
from pyspec.lookup.memory import Memory, OwnTexts
from pyspec.lookup.text_index import TextIndex

texts = st.lists(st.integers(0, 3), max_size=40)


@given(st.lists(texts, max_size=4), texts, st.integers(1, 12))
def test_index_says_what_a_search_says(known, text, limit):
    """Of several texts, the last of which goes on: tokens, match and choices are the slow twin's."""
    index = TextIndex()
    for one in known:
        index.add(TextIndex.EMPTY, one)
    found = index.next(index.add(TextIndex.EMPTY, text), len(text), limit)
    assert (list(found.tokens), found.match, found.choices) == _found(
        slow_draft([*known, text], text, limit)
    )


def _found(twin):
    return twin if twin[0] else ([], 0, 1)


@given(texts, texts, st.lists(st.booleans(), max_size=80))
def test_texts_may_grow_side_by_side(first, second, turns):
    """However the tokens of two texts come in between each other, every place is what it would be."""
    index, places, sizes = TextIndex(), [TextIndex.EMPTY] * 2, [0, 0]
    grown: list[list[int]] = []
    for turn in turns:
        text = (first, second)[turn]
        if sizes[turn] < len(text):
            places[turn] = index.add(places[turn], [text[sizes[turn]]])
            sizes[turn] += 1
            grown.append(text[: sizes[turn]])
    for text, place, size in zip((first, second), places, sizes, strict=True):
        found = index.next(place, size, 6)
        twin = _found(slow_draft(grown, text[:size], 6))
        assert (list(found.tokens), found.match, found.choices) == twin


@given(texts, texts)
def test_a_text_that_is_not_in_it_is_looked_up(known, text):
    index = TextIndex()
    index.add(TextIndex.EMPTY, known)
    found = index.look_up(text, 5)
    longest = next((n for n in range(len(text), 1, -1) if _occurs(text[-n:], known[:-1])), 0)
    assert found.match == longest


def _occurs(part, text):
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def test_a_text_told_again_is_counted_once():
    """Conversations are sent again with every turn: that takes no room and gives no weight."""
    index, text = TextIndex(), [1, 2, 3, 4] * 30
    end = index.add(TextIndex.EMPTY, text)
    size, taken = index.size, index.nbytes
    assert index.add(TextIndex.EMPTY, text) == end
    assert (index.size, index.nbytes) == (size, taken)
    assert index.walk(TextIndex.EMPTY, [*text[:5], 9]) == (index.add(TextIndex.EMPTY, text[:5]), 5)


def test_a_token_takes_less_than_half_of_what_it_took():
    """416 bytes a token were measured of dictionaries; words repeat, so this text's tokens are drawn from few."""
    index = TextIndex()
    index.add(TextIndex.EMPTY, [(i * i + i // 7) % 997 for i in range(20_000)])
    assert index.nbytes / index.size < 208


# -- owners ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), texts), max_size=8))
def test_owners_never_mix(asked):
    """What is drafted for an owner is what would be drafted if there was nobody else."""
    together, alone = LookupDrafter(Memory()), {n: LookupDrafter(Memory()) for n in range(3)}
    for owner, text in asked:
        for drafter in (together, alone[owner]):
            drafter.begin(0, str(owner))
        assert together.propose(0, text, 8) == alone[owner].propose(0, text, 8)


def test_what_another_request_said_is_drafted():
    """The answer to one request is the draft of the next, up to its last token."""
    drafter, text = LookupDrafter(Memory()), [1, 2, 3, 4, 5]
    drafter.propose(0, text, 4)
    text += [6, 7]
    drafter.begin(0)
    assert list(drafter.propose(0, [8, 2, 3], 9).tokens) == [4, 5, 6, 7]


def test_sequences_of_an_owner_hear_each_other():
    """Answers in flight at once draft for each other."""
    drafter = LookupDrafter(Memory())
    drafter.propose(0, [1, 2, 3, 4], 4)
    assert list(drafter.propose(1, [9, 1, 2], 2).tokens) == [3, 4]


def test_without_a_memory_texts_are_alone():
    drafter = LookupDrafter()
    drafter.propose(0, [1, 2, 3, 4], 4)
    assert not drafter.propose(1, [9, 1, 2], 2).tokens


# -- limits ------------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), texts), max_size=12), st.integers(1, 60))
def test_size_is_bounded(asked, most):
    """Between two texts there are no more than the limit and the longest text."""
    memory = Memory(tokens=most)
    drafter, longest = LookupDrafter(memory), 0
    for owner, text in asked:
        longest = max(longest, len(text))
        drafter.begin(0, str(owner))
        before = memory.size
        drafter.propose(0, text, 4)
        assert memory.size <= max(before, most) + len(text)
        memory.texts_of(str(owner))
        assert memory.size <= most + longest + 1


def test_texts_stay_while_later_ones_come():
    """The newest half of what may be kept is always there."""
    own = OwnTexts(most=100)
    for n in range(50):
        own.tidy()
        text = [1000 * n + i for i in range(20)]
        own.add(TextIndex.EMPTY, text)
        for older in range(max(0, n - 4), n + 1):
            known = [1000 * older + i for i in range(20)]
            place = own.add(TextIndex.EMPTY, [5, 5, *known[:4]])
            assert own.next(place, [5, 5, *known[:4]], 3).tokens == known[4:7]
    assert own.size < 3 * 100 + 200


def test_old_texts_go(monkeypatch):
    """After as many days nothing of a text is left."""
    now = [1e9]
    monkeypatch.setattr("pyspec.lookup.memory.time.time", lambda: now[0])
    drafter = LookupDrafter(Memory(days=2.0))
    drafter.propose(0, [1, 2, 3, 4], 4)
    for hours, there in ((20, True), (26, True), (49, False)):
        now[0] = 1e9 + 3600 * hours
        drafter.begin(0)
        assert bool(drafter.propose(0, [2, 3], 4).tokens) is there


def test_old_texts_of_others_go(monkeypatch, tmp_path):
    """Whoever is asked next: an owner who never comes back is not kept, here or on disk."""
    now = [1e9]
    monkeypatch.setattr("pyspec.lookup.memory.time.time", lambda: now[0])
    memory = Memory(tmp_path, days=2.0)
    for hours, owner in ((0, "a"), (20, "b"), (23, "a"), (45, "c")):
        now[0] = 1e9 + 3600 * hours
        memory.texts_of(owner).add(TextIndex.EMPTY, list(range(100 + hours)))
        memory.texts_of(owner).flush()
    assert memory.size == 100 + 120 + 23 + 145
    for hours, left, files in ((48, 120 + 145, 2), (69, 145, 1), (70, 145, 1), (94, 0, 0)):
        now[0] = 1e9 + 3600 * hours
        memory.texts_of("d")
        assert memory.size == left
        assert len([path for path in tmp_path.rglob("*") if path.suffix]) == files


def test_an_owner_counts_beside_its_texts():
    """Many who said a word each are not kept for ever, and what is asked of one looks at no other."""
    memory = Memory(tokens=5000)
    for n in range(1000):
        memory.texts_of(str(n)).add(TextIndex.EMPTY, [n, 1])
    assert len(memory._owners) < 100
    assert len(memory._due) < 300
    assert memory.size == 2 * len(memory._owners)
    assert memory.nbytes < 100 * 3500


def test_what_is_asked_of_one_owner_looks_at_no_other(monkeypatch):
    """Summing and sorting 16,000 of them took 30 ms of every request."""
    memory, tidied = Memory(), []
    for n in range(200):
        memory.texts_of(str(n)).add(TextIndex.EMPTY, [n, 1, 2])
    monkeypatch.setattr(OwnTexts, "tidy", lambda self, _now: tidied.append(self))
    monkeypatch.setattr(TextIndex, "size", property(lambda _self: pytest.fail("it was summed")))
    assert tidied == [memory.texts_of("7")]
    assert memory.size == 600


def test_an_index_without_texts_takes_nothing():
    """Most owners' older half is one."""
    index = TextIndex()
    assert (index.size, index.nbytes, index.walk(TextIndex.EMPTY, [1])) == (
        0,
        0,
        (TextIndex.EMPTY, 0),
    )
    assert not index.look_up([1, 2], 3).tokens
    assert not index.next(TextIndex.EMPTY, 0, 3).tokens


def test_an_answer_that_goes_on_while_texts_change_places_is_followed():
    memory = Memory(tokens=20)
    drafter = LookupDrafter(memory)
    text = list(range(30))
    drafter.propose(0, text, 4)
    drafter.propose(1, [5, 6], 4)  # the first text is in the older half from here on
    text += [3, 4, 5]
    assert list(drafter.propose(0, text, 2).tokens) == [6, 7]
    assert list(drafter.propose(1, [5, 6, 7], 2).tokens) == [8, 9]


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"days": 0.0}, {"days": float("nan")}])
def test_limits_that_cannot_be(wrong):
    with pytest.raises(OptionError):
        Memory(**wrong)


# -- on disk -----------------------------------------------------------------------------------------------------------


def _say(folder: Path, text: list[int], owner: str = "", **options) -> list[int]:
    drafter = LookupDrafter(Memory(folder, **options))
    drafter.begin(0, owner)
    found = drafter.propose(0, text, 6)
    drafter.close()
    return list(found.tokens)


def test_a_later_process_knows(tmp_path):
    """What was said there is drafted; for the same owner and vocabulary."""
    assert not _say(tmp_path, [1, 2, 3, 4, 5])
    assert _say(tmp_path, [9, 2, 3]) == [4, 5]
    assert not _say(tmp_path, [9, 2, 3], "another")
    assert not _say(tmp_path, [9, 2, 3], vocabulary="another")


@settings(max_examples=30)
@given(st.lists(texts, min_size=1, max_size=5), texts)
def test_what_was_kept_is_what_was_known(tmp_path_factory, said, text):
    """Processes that follow each other draft as one that said it all."""
    folder = tmp_path_factory.mktemp("texts")
    whole = LookupDrafter(Memory())
    for one in [*said, text]:
        whole.begin(0)
        wanted = list(whole.propose(0, one, 6).tokens)
        assert _say(folder, one) == wanted


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_file_costs_no_more_than_what_is_behind_the_damage(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("texts")
    _say(folder, [1, 2, 3, 4, 5])
    _say(folder, [6, 7, 8, 9, 10])
    (path,) = folder.rglob("*.texts")
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut] + data.draw(st.binary(max_size=40)))
    _say(folder, [11, 12, 13])
    assert _say(folder, [9, 11, 12]) == [13]


def test_files_are_for_their_user_alone(tmp_path):
    _say(tmp_path / "texts", [1, 2, 3], "secret key")
    for path in (tmp_path / "texts").rglob("*"):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        assert "secret" not in path.name


def test_a_second_process_keeps_nothing_there(tmp_path, caplog):
    """Two would spoil each other's files: it says so and goes on."""
    first = Memory(tmp_path)
    second = LookupDrafter(Memory(tmp_path))
    assert "another process" in caplog.text
    assert list(second.propose(0, [1, 2, 3, 1, 2], 1).tokens) == [3]
    second.close()
    first.close()
    assert not list(tmp_path.rglob("*.texts"))


def test_files_beyond_the_limit_go(tmp_path):
    for n in range(8):
        _say(tmp_path, list(range(100 * n, 100 * n + 90)), str(n), tokens=400)
    assert len(list(tmp_path.rglob("*.texts"))) <= 5
    assert _say(tmp_path, [702, 703], "7", tokens=400) == [704, 705, 706, 707, 708, 709]


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="name a folder"):
        Memory(tmp_path / "file")
