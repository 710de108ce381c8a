"""Remembers earlier texts of each owner in this process, in an index of what followed each part (`native/ps_index.c`).

No owner's text is ever drafted for another. A draft does not change strict output, but its speed reveals whether the draft was
right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspec._lib import check, ffi, lib
from pyspec.errors import OptionError

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


MAX_TOKENS = 500_000
"""Most tokens of all owners together, 84 bytes each."""

_AN_OWNER = 50
# tokens that an owner costs besides its texts: the index takes 3 kB, objects 1 kB


class Memory:
    """The texts of each owner, for drafts. Not thread-safe.

    Args:
        tokens: Most tokens of all owners together; each owner counts 50 more. The least recently used owners go first. An owner
            whose own texts are as many starts anew.

    Raises:
        OptionError: No token may be kept.
    """

    def __init__(self, tokens: int = MAX_TOKENS) -> None:
        if tokens < 1:
            raise OptionError(f"a memory cannot have {tokens} tokens", "use at least 1 token")
        self._tokens, self.size = tokens, 0
        self._owners: dict[str, TextIndex] = {}  # least recently used first
        self._counted: dict[str, int] = {}

    def texts_of(self, owner: str) -> TextIndex:
        """An owner's texts; others go to make room. A text that is under way keeps the index that it began with.

        Args:
            owner: Any name; "" owns texts without a named owner.
        """
        self.count(owner)
        if self._counted.get(owner, 0) >= self._tokens:
            self._drop(owner)
        self._owners[owner] = texts = self._owners.pop(owner, None) or TextIndex()
        self.count(owner)
        while len(self._owners) > 1 and self.size + _AN_OWNER * len(self._owners) > self._tokens:
            self._drop(next(iter(self._owners)))
        return texts

    def count(self, owner: str) -> None:
        """Note how many tokens an owner's texts have grown to."""
        if (texts := self._owners.get(owner)) is not None:
            self.size += texts.size - self._counted.get(owner, 0)
            self._counted[owner] = texts.size

    def _drop(self, owner: str) -> None:
        del self._owners[owner]
        self.size -= self._counted.pop(owner)
