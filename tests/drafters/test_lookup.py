"""The suffix index against a slow twin that scans, and what lookup drafts from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.drafters import LookupDrafter
from pyspec.drafters.lookup import SuffixIndex

texts = st.lists(st.integers(0, 3), max_size=60)


def slow_match(text):
    """(length, last end) of the longest proper suffix that occurred before, by scanning; (0, -1) for none."""
    for length in range(len(text) - 1, 0, -1):
        for end in range(len(text) - 2, length - 2, -1):
            if text[end - length + 1 : end + 1] == text[-length:]:
                return length, end
    return 0, -1


def slow_draft(text, limit, min_match):
    """What followed the longest earlier occurrence, going on into itself where it reaches the end."""
    length, end = slow_match(text)
    if length < min_match:
        return []
    grown = list(text)
    for position in range(end + 1, end + 1 + limit):
        grown.append(grown[position])
    return grown[len(text) :]


@given(texts)
def test_index_finds_the_longest_earlier_suffix(text):
    """Length and newest place of the match are the slow twin's after every token."""
    index = SuffixIndex()
    for i, token in enumerate(text):
        index.extend(token)
        assert index.match == slow_match(text[: i + 1])


@given(texts)
def test_choices_are_the_different_continuations(text):
    """As many as different tokens stand behind the match in the text before."""
    index = SuffixIndex()
    for token in text:
        index.extend(token)
    length, _ = index.match
    end = text[len(text) - length :]
    places = [i for i in range(length, len(text)) if text[i - length : i] == end]
    assert not length or index.choices == len({text[i] for i in places})


@given(texts, st.integers(1, 20), st.integers(1, 4))
def test_draft_is_the_slow_twins(text, limit, min_match):
    """Drafted tokens are the slow twin's, for every limit and shortest match."""
    drafter = LookupDrafter(min_match)
    proposal = drafter.propose(0, text, limit)
    assert list(proposal.tokens) == slow_draft(text, limit, min_match)
    assert not proposal.tokens or proposal.match_length == slow_match(text)[0]


@given(texts, texts, st.integers(0, 40))
def test_growing_and_replaced_texts_draft_as_fresh_ones(first, second, shared):
    """A drafter that saw another text before, or a shorter one, drafts as one that saw this text only."""
    drafter = LookupDrafter()
    drafter.propose(0, first, 5)
    other = first[:shared] + second
    assert drafter.propose(0, other, 5) == LookupDrafter().propose(0, other, 5)
    grown = other + second
    assert drafter.propose(0, grown, 5) == LookupDrafter().propose(0, grown, 5)


def test_text_that_grows_in_place_is_followed():
    """The loop's own list grows between proposals: only what is new is indexed."""
    drafter, text = LookupDrafter(), [1, 2, 3, 4]
    drafter.propose(0, text, 4)
    text += [5, 2, 3]
    assert list(drafter.propose(0, text, 2).tokens) == [4, 5]


def test_replaced_text_with_the_same_tail_is_noticed():
    """A text of the same length with the same last tokens is another text."""
    drafter = LookupDrafter()
    drafter.propose(0, [7, 8, 9, 1, 2, 3, 4], 4)
    assert list(drafter.propose(0, [5, 6, 5, 1, 2, 3, 4, 5, 6], 2).tokens) == [5, 1]


def test_sequences_are_kept_apart():
    """Each sequence has an index of its own."""
    drafter = LookupDrafter()
    drafter.propose(0, [1, 2, 3, 1, 2], 3)
    assert not drafter.propose(1, [1, 2], 3).tokens
    assert list(drafter.propose(0, [1, 2, 3, 1, 2], 1).tokens) == [3]


def test_forgotten_sequence_starts_anew():
    """forget() drops the index of one sequence."""
    drafter = LookupDrafter()
    drafter.propose(0, [1, 2, 3, 1, 2], 3)
    drafter.forget(0)
    assert list(drafter.propose(0, [4, 5, 6, 4, 5], 1).tokens) == [6]


def test_repetition_goes_on_with_itself():
    """Past the end of the text the repeated stretch is drafted again."""
    assert list(LookupDrafter().propose(0, [1, 2, 1, 2, 1, 2], 5).tokens) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("text", [[], [1], [1, 2, 3]])
def test_nothing_to_draft(text):
    """Without a repetition nothing is proposed."""
    assert LookupDrafter().propose(0, text, 5).tokens == ()


def test_no_room_no_draft():
    """A limit of 0 proposes nothing."""
    assert LookupDrafter().propose(0, [1, 2, 1, 2], 0).tokens == ()
