"""Prompt lookup: continue the longest suffix of the text that occurred before.

The text is indexed by a suffix automaton (Blumer et al. 1985) that grows one token at a time, in amortised constant time. Its
suffix link after each token is the longest suffix seen before, so a proposal costs no search at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspec.drafters.base import NOTHING, Drafter, Proposal


class SuffixIndex:
    """A suffix automaton over token ids that remembers where each of its states last ended."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]
        self._last = 0
        self._match = (0, -1)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def match(self) -> tuple[int, int]:
        """Length of the longest suffix that occurred before, and the position where it last ended; (0, -1) for none."""
        return self._match

    @property
    def choices(self) -> int:
        """How many different tokens have followed that suffix."""
        return len(self._next[max(0, self._link[self._last])])

    def extend(self, token: int) -> None:
        """Append one token."""
        position = len(self.tokens)
        self.tokens.append(token)
        state = self._new_state(self._length[self._last] + 1, position)
        link = self._link_of(token)
        self._link[state] = link
        self._match = (self._length[link], self._end[link]) if link else (0, -1)
        self._last = state
        while link > 0:  # the newest occurrence is the best guess the next time
            self._end[link] = position
            link = self._link[link]

    def _new_state(self, length: int, end: int) -> int:
        self._next.append({})
        self._link.append(0)
        self._length.append(length)
        self._end.append(end)
        return len(self._length) - 1

    def _link_of(self, token: int) -> int:
        """Give the newest state its transitions, and return the state of the longest earlier suffix."""
        state, walk = len(self._length) - 1, self._last
        while walk != -1 and token not in self._next[walk]:
            self._next[walk][token] = state
            walk = self._link[walk]
        if walk == -1:
            return 0
        known = self._next[walk][token]
        if self._length[walk] + 1 == self._length[known]:
            return known
        return self._split(known, walk, token)

    def _split(self, known: int, walk: int, token: int) -> int:
        clone = self._new_state(self._length[walk] + 1, self._end[known])
        self._next[clone] = dict(self._next[known])
        self._link[clone] = self._link[known]
        self._link[known] = clone
        while walk != -1 and self._next[walk].get(token) == known:
            self._next[walk][token] = clone
            walk = self._link[walk]
        return clone


class LookupDrafter(Drafter):
    """Drafts what followed the longest earlier occurrence of the text's end.

    min_match: shortest suffix worth continuing, in tokens.
    """

    name = "lookup"

    def __init__(self, min_match: int = 2) -> None:
        self.min_match = min_match
        self._index: dict[int, SuffixIndex] = {}
        self._source: dict[int, Sequence[int]] = {}

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """What followed the longest earlier occurrence, at most `limit` tokens."""
        index = self._up_to_date(seq, tokens)
        length, end = index.match
        if length < self.min_match or limit < 1:
            return NOTHING
        text = index.tokens
        draft: list[int] = []
        for position in range(end + 1, end + 1 + limit):
            # past the end of the text a repetition goes on with its own continuation
            draft.append(text[position] if position < len(text) else draft[position - len(text)])
        return Proposal(draft, length, index.choices)

    def _up_to_date(self, seq: int, tokens: Sequence[int]) -> SuffixIndex:
        index = self._index.get(seq)
        if index is None or not self._continues(seq, index, tokens):
            index = self._index[seq] = SuffixIndex()
        self._source[seq] = tokens
        for token in tokens[len(index) :]:
            index.extend(token)
        return index

    def _continues(self, seq: int, index: SuffixIndex, tokens: Sequence[int]) -> bool:
        """Whether `tokens` goes on from what was indexed; a text that is still the same object has only grown."""
        held = len(index)
        if held > len(tokens):
            return False
        return self._source.get(seq) is tokens or list(tokens[:held]) == index.tokens

    def forget(self, seq: int) -> None:
        """Drop a sequence's index: its text was replaced."""
        self._index.pop(seq, None)
        self._source.pop(seq, None)
