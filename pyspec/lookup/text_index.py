"""An index of texts: how often each continuation followed each part. The work is done in C (`native/ps_index.c`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspec._lib import check, ffi, lib

SHORTEST_MATCH = 2
"""Shortest end of a text that is worth continuing, in tokens."""

TAIL = 64
"""Most tokens of a continuation, and of a prompt's end that a predicted text continues."""

_EMPTY = int(lib.PS_INDEX_EMPTY)


class Continuation(NamedTuple):
    """What may follow a text: tokens, the length of the end that they continue, and how many different tokens followed that."""

    tokens: Sequence[int]
    match: int = 0
    choices: int = 1


_NOTHING = Continuation(())


class TextIndex:
    """Texts, with counts of what followed each of their parts (`native/ps_index.c`); texts with equal beginnings share them.

    A place stands for a text; `EMPTY` for the one without tokens. The same calls give the same places.
    """

    EMPTY = _EMPTY

    def __init__(self) -> None:
        self._index: Any = None  # made with the first text: it takes 3 kB
        self._place = ffi.new("int32_t *")
        self._tokens, self._found = ffi.new("int32_t[]", TAIL), ffi.new("ps_found *")

    def add(self, place: int, tokens: Sequence[int]) -> int:
        """Add these tokens after `place`; returns the place of the longer text."""
        if self._index is None:
            out = ffi.new("ps_index **")
            check(lib.ps_index_open(out), "the index of texts")
            self._index = ffi.gc(out[0], lib.ps_index_close)
        self._place[0] = place
        ids = ffi.new("int32_t[]", tokens)
        check(lib.ps_index_add(self._index, ids, len(tokens), self._place), "the index of texts")
        return int(self._place[0])

    def next(self, place: int, length: int, limit: int) -> Continuation:
        """What most often followed the longest known end of the text at `place` (`length` tokens); the newest wins ties."""
        if self._index is None:
            return _NOTHING
        limit = min(limit, TAIL)
        check(
            lib.ps_index_next(
                self._index, place, length, SHORTEST_MATCH, limit, self._tokens, self._found
            )
        )
        found = self._found
        if not found.n:
            return _NOTHING
        return Continuation(ffi.unpack(self._tokens, found.n), found.match, found.choices)

    @property
    def size(self) -> int:
        """Number of tokens; shared beginnings count once."""
        return self._sizes()[0]

    @property
    def nbytes(self) -> int:
        return self._sizes()[1]

    def _sizes(self) -> tuple[int, int]:
        if self._index is None:
            return 0, 0
        n_tokens, n_bytes = ffi.new("int64_t *"), ffi.new("int64_t *")
        check(lib.ps_index_size(self._index, n_tokens, n_bytes))
        return n_tokens[0], n_bytes[0]
