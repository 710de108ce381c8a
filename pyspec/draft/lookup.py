"""Drafters that run in Python: prompt lookup, and llama-cpp-python's draft models.

GGUF draft models run in the engine, in lock-step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel

from pyspec._lib import check, ffi, lib


class Proposal(msgspec.Struct, frozen=True):
    """Drafted tokens, and what they were taken from.

    Attributes:
        tokens: Ids, the next token first; may be empty.
        match_length: Length of the earlier match that they continue, in tokens; 0 if there is none.
    """

    tokens: Sequence[int]
    match_length: int = 0


NOTHING = Proposal(())


class Drafter(ABC):
    """Proposes tokens that may follow a sequence.

    One drafter serves several sequences; `seq` is the number of one. A drafter may return fewer tokens than asked for, or none.
    If it returns ids outside the target's vocabulary, the loop drops the draft and continues without one.
    """

    name = "drafter"

    @abstractmethod
    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """Draft for one sequence.

        Args:
            seq: Number of the sequence.
            tokens: Its committed token ids, prompt included. Do not change them.
            limit: Most tokens that are of use.

        Returns:
            Up to `limit` tokens that may follow.
        """

    def begin(self, seq: int, owner: str = "") -> None:  # noqa: B027 - as below
        """Note that another text takes this number. owner: whose it is; "" if it has no named owner."""

    def move(self, seq: int, to: int) -> None:  # noqa: B027 - as below
        """Note that a text goes on under the number `to`, whose own text is over."""

    def expect(self, seq: int, tokens: Sequence[int]) -> None:  # noqa: B027 - as below
        """Take a prediction of a text, to draft from: ids of the prompt's last tokens and of what may follow. After `begin`."""

    def end(self, seq: int, tokens: Sequence[int]) -> None:  # noqa: B027 - most keep nothing
        """Note that a text, of these ids, is over, whether anything was proposed for it or not."""


class ForeignDrafter(Drafter):
    """Asks a llama-cpp-python draft model, one sequence at a time."""

    def __init__(self, model: LlamaDraftModel) -> None:
        self._model = model
        self.name = type(model).__name__

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """The first `limit` tokens that the model returns."""
        proposed = self._model(np.asarray(tokens, dtype=np.intc))
        return Proposal([int(token) for token in proposed[:limit]])


# -- texts --------------------------------------------------------------------------------------------------------------


SHORTEST_MATCH = 2
"""Shortest end of a text that is worth continuing, in tokens."""

TAIL = 64
"""Most tokens of a continuation, and of a prompt's end that a predicted text continues."""


class TextIndex:
    """Texts, with counts of what followed each of their parts (`native/ps_index.c`); texts with equal beginnings share them.

    A place stands for a text; `EMPTY` for the one without tokens. The same calls give the same places.
    """

    EMPTY = int(lib.PS_INDEX_EMPTY)

    def __init__(self) -> None:
        out = ffi.new("ps_index **")
        check(lib.ps_index_open(out), "the index of texts")
        self._index: Any = ffi.gc(out[0], lib.ps_index_close)
        self._place = ffi.new("int32_t *")
        self._tokens, self._found = ffi.new("int32_t[]", TAIL), ffi.new("ps_found *")

    def add(self, place: int, tokens: Sequence[int]) -> int:
        """Add these tokens after `place`; returns the place of the longer text."""
        self._place[0] = place
        ids = ffi.new("int32_t[]", tokens)
        check(lib.ps_index_add(self._index, ids, len(tokens), self._place), "the index of texts")
        return int(self._place[0])

    def next(self, place: int, length: int, limit: int) -> Proposal:
        """What most often followed the longest known end of the text at `place` (`length` tokens); the newest wins ties."""
        out = self._tokens, self._found
        limit = min(limit, TAIL)
        check(lib.ps_index_next(self._index, place, length, SHORTEST_MATCH, limit, *out))
        found = self._found
        if not found.n:
            return NOTHING
        return Proposal(ffi.unpack(self._tokens, found.n), found.match)

    @property
    def size(self) -> int:
        """Number of tokens; shared beginnings count once."""
        n_tokens, n_bytes = ffi.new("int64_t *"), ffi.new("int64_t *")
        check(lib.ps_index_size(self._index, n_tokens, n_bytes))
        return int(n_tokens[0])


MAX_TOKENS = 500_000
"""Most tokens of all owners together, 84 bytes each."""

# tokens that an owner costs besides its texts: the index takes 3 kB, objects 1 kB
_AN_OWNER = 50


class Memory:
    """The texts of each owner, for drafts. Not thread-safe.

    Args:
        tokens: Most tokens of all owners together; each owner counts 50 more. The least recently used owners go first. An owner
            whose own texts are as many starts anew.
    """

    def __init__(self, tokens: int = MAX_TOKENS) -> None:
        self._tokens, self.size = tokens, 0
        self._owners: dict[str, TextIndex] = {}  # least recently used first
        self._counted: dict[str, int] = {}

    def texts_of(self, owner: str) -> TextIndex:
        """An owner's texts; others go to make room. A text that is under way keeps the index that it began with.

        owner: any name; "" owns texts without a named owner.
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


# -- prompt lookup -----------------------------------------------------------------------------------------------------


class _GrowingText:
    """A text as it grows, and its place in its owner's index.

    Its first `size` tokens are known; `text` is the caller's own object, not a copy.
    """

    def __init__(self, index: TextIndex) -> None:
        self.index = index
        self.text: Sequence[int] = ()
        self.size, self._place = 0, TextIndex.EMPTY

    def continues(self, text: Sequence[int]) -> bool:
        """Whether a text continues what is known; the same object can only have grown."""
        n = self.size
        return n <= len(text) and (text is self.text or list(text[:n]) == list(self.text[:n]))

    def follow(self, text: Sequence[int]) -> None:
        """Add the new tokens of a text that continues."""
        self.text = text
        if self.size < len(text):
            self._place = self.index.add(self._place, text[self.size :])
            self.size = len(text)

    def next(self, limit: int) -> Proposal:
        """What may follow it."""
        return self.index.next(self._place, len(self.text), limit)


class LookupDrafter(Drafter):
    """Drafts what followed the longest earlier occurrence of the text's end, in the text itself and in its owner's `memory`."""

    name = "lookup"

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory
        self._texts: dict[int, _GrowingText] = {}
        self._owners: dict[int, str] = {}

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """What most often followed the longest earlier occurrence, at most `limit` tokens."""
        return self._followed(seq, tokens).next(limit)

    def _followed(self, seq: int, tokens: Sequence[int]) -> _GrowingText:
        """The sequence's text, up to these tokens; another one if they do not continue it."""
        text = self._texts.get(seq)
        if text is None or not text.continues(tokens):
            text = self._begin(seq)
        text.follow(tokens)
        return text

    def _begin(self, seq: int) -> _GrowingText:
        self._end(seq)
        memory = self.memory
        index = TextIndex() if memory is None else memory.texts_of(self._owners.get(seq, ""))
        self._texts[seq] = text = _GrowingText(index)
        return text

    def _end(self, seq: int) -> None:
        text = self._texts.pop(seq, None)
        if text is not None and self.memory is not None:
            text.follow(text.text)  # the last round's tokens
            self.memory.count(self._owners.get(seq, ""))

    def begin(self, seq: int, owner: str = "") -> None:
        """Note that another text, of this owner, takes this sequence number."""
        self._end(seq)
        self._owners[seq] = owner

    def move(self, seq: int, to: int) -> None:
        """The text goes on under another number."""
        self._end(to)
        if seq in self._texts:
            self._texts[to] = self._texts.pop(seq)
        self._owners[to] = self._owners.pop(seq, "")

    def expect(self, seq: int, tokens: Sequence[int]) -> None:
        """What is predicted is one more of the owner's texts."""
        self._begin(seq).index.add(TextIndex.EMPTY, tokens)

    def end(self, seq: int, tokens: Sequence[int]) -> None:
        """Remember the text for its owner's next ones, even if nothing was drafted for it."""
        if self.memory is not None:
            self._followed(seq, tokens)
            self._end(seq)
