"""Prompt lookup and the memory of what was said before, against a slow twin; and llama-cpp-python's draft models."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from pyspec.draft.lookup import SHORTEST_MATCH, ForeignDrafter, LookupDrafter, Memory, TextIndex

texts = st.lists(st.integers(0, 3), max_size=40)

START = -1
"""Stands before each text, and nowhere else."""


def follower(beginnings, grown):
    """The token that came most often behind the longest known end of a text, the latest of equals, and that end's length."""
    for n in range(len(grown), SHORTEST_MATCH - 1, -1):
        matched = n - (n == len(grown))  # START is none of a text's tokens
        end = tuple(grown[-n:])
        after = [beginning[-1] for beginning in beginnings if beginning[-1 - n : -1] == end]
        if after and matched >= SHORTEST_MATCH:
            counts, last = Counter(after), {token: when for when, token in enumerate(after)}
            return max(counts, key=lambda token: (counts[token], last[token])), matched
    return None


def twin_of(known, text, limit):
    """What a search in all known texts, anew for each token, drafts behind this one; the length of the first end found."""
    beginnings = dict.fromkeys((START, *one[:n]) for one in known for n in range(1, len(one) + 1))
    grown, matches = [START, *text], []
    while len(matches) < limit and (found := follower(beginnings, grown)):
        grown.append(found[0])
        matches.append(found[1])
    return grown[1 + len(text) :], (matches or [0])[0]


@given(st.lists(texts, max_size=4), texts, st.integers(1, 12))
def test_index_says_what_a_search_says(known, text, limit):
    index = TextIndex()
    for one in known:
        index.add(TextIndex.EMPTY, one)
    found = index.next(index.add(TextIndex.EMPTY, text), len(text), limit)
    assert (list(found.tokens), found.match_length) == twin_of([*known, text], text, limit)


@given(texts, texts, st.lists(st.booleans(), max_size=80))
def test_texts_may_grow_side_by_side(first, second, turns):
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
        twin = twin_of(grown, text[:size], 6)
        assert (list(found.tokens), found.match_length) == twin


def test_a_text_told_again_is_counted_once():
    """Conversations are sent again with every turn: that takes no room and gives no weight."""
    index, text = TextIndex(), [1, 2, 3, 4] * 30
    assert (index.size, list(index.next(TextIndex.EMPTY, 0, 3).tokens)) == (0, [])
    end = index.add(TextIndex.EMPTY, text)
    size = index.size
    assert (index.add(TextIndex.EMPTY, text), index.size) == (end, size)


@given(st.lists(st.tuples(st.integers(0, 2), texts), max_size=8))
def test_owners_never_mix(asked):
    together, alone = LookupDrafter(Memory()), {n: LookupDrafter(Memory()) for n in range(3)}
    for owner, text in asked:
        for drafter in (together, alone[owner]):
            drafter.begin(0, str(owner))
        assert together.propose(0, text, 8) == alone[owner].propose(0, text, 8)


def test_what_another_request_or_sequence_said_is_drafted():
    drafter, text = LookupDrafter(Memory()), [1, 2, 3, 4, 5]
    drafter.propose(0, text, 4)
    assert list(drafter.propose(1, [9, 1, 2], 2).tokens) == [3, 4]
    text += [6, 7]
    drafter.begin(0)
    assert list(drafter.propose(0, [8, 2, 3], 9).tokens) == [4, 5, 6, 7]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), texts), max_size=12), st.integers(1, 60))
def test_size_is_bounded(asked, most):
    memory = Memory(tokens=most)
    drafter, longest = LookupDrafter(memory), 0
    for owner, text in asked:
        longest = max(longest, len(text))
        drafter.begin(0, str(owner))
        drafter.propose(0, text, 4)
        drafter.end(0, text)
        assert memory.size <= most + longest
        assert memory.size == sum(texts.size for texts in memory._owners.values())


def test_an_owner_counts_beside_its_texts():
    memory = Memory(tokens=5000)
    for n in range(1000):
        memory.texts_of(str(n)).add(TextIndex.EMPTY, [n, 1])
        memory.count(str(n))
        memory.texts_of("0")
    assert 90 < len(memory._owners) < 100
    assert {"0", "999", "950"} < memory._owners.keys()
    assert memory.size == 2 * len(memory._owners)


def test_an_answer_that_goes_on_while_its_owner_starts_anew_is_followed():
    memory = Memory(tokens=20)
    drafter = LookupDrafter(memory)
    text = list(range(30))
    drafter.propose(0, text, 4)
    drafter.propose(1, [5, 6], 4)  # the first text is in no memory from here on
    text += [3, 4, 5]
    assert list(drafter.propose(0, text, 2).tokens) == [6, 7]
    drafter.end(0, text)
    assert memory.size == 2
    assert not drafter.propose(1, [5, 6, 7], 2).tokens


def test_ids_come_through():
    """The model gets the text as an array of C ints and its answer becomes plain ints, no more than were asked for."""
    seen = []

    def model(ids):
        seen.append((ids.dtype, ids.tolist()))
        return np.arange(4, 13, dtype=np.intc)

    proposal = ForeignDrafter(model).propose(0, [1, 2, 3], 3)
    assert seen == [(np.dtype(np.intc), [1, 2, 3])]
    assert proposal.tokens == [4, 5, 6]
    assert all(type(token) is int for token in proposal.tokens)


def test_prompt_lookup_of_llama_cpp_python():
    """Its own prompt lookup drafts through the wrapper and lends it its name."""
    drafter = ForeignDrafter(LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=3))
    assert drafter.name == "LlamaPromptLookupDecoding"
    assert drafter.propose(0, [1, 2, 3, 4, 1, 2], 3).tokens == [3, 4, 1]


@given(texts, texts, st.integers(0, 40))
def test_growing_and_replaced_texts_draft_as_fresh_ones(first, second, shared):
    drafter = LookupDrafter()
    drafter.propose(0, first, 5)
    other = first[:shared] + second
    assert drafter.propose(0, other, 5) == LookupDrafter().propose(0, other, 5)
    grown = other + second
    assert drafter.propose(0, grown, 5) == LookupDrafter().propose(0, grown, 5)


def test_sequences_are_kept_apart_and_begin_anew():
    drafter = LookupDrafter()
    drafter.propose(0, [1, 2, 3, 1, 2], 3)
    assert not drafter.propose(1, [1, 2], 3).tokens
    assert list(drafter.propose(0, [1, 2, 3, 1, 2], 1).tokens) == [3]
    drafter.begin(0)
    assert list(drafter.propose(0, [4, 5, 6, 4, 5], 1).tokens) == [6]


def test_a_text_that_moves_is_known_under_its_new_number():
    """With what was expected of it; the text that had the number is over."""
    drafter = LookupDrafter()
    drafter.begin(5)
    drafter.expect(5, [7, 8, 9, 10])
    drafter.propose(1, [4, 4, 4], 2)
    drafter.move(5, 1)
    assert drafter.propose(1, [7, 8, 9], 2).tokens == [10]
