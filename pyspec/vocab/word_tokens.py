"""Splits texts at the words that are single tokens, before llama.cpp does: its own search takes time squared in their number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from time import monotonic
from typing import Any

import llama_cpp

from pyspec._lib import address, check, ffi, lib
from pyspec.errors import InputError

_PARSED = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
_ALWAYS = llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
_SPACE = b" \t\n\v\f\r"

SHORT = 512
"""In shorter texts, bytes, llama.cpp finds the words as fast by itself."""

_REPEATED = 32
"""Longest stretch between words that is tokenized only once, bytes."""
_MAX_KNOWN = 1 << 16

BUDGET_S = 10.0
"""Longest that a text of many words may take."""


def tokens_with(vocab: Any, attributes: int) -> list[int]:
    """Return the ids of all tokens that have one of these attributes."""
    pointer, count = ffi.cast("void *", address(vocab)), ffi.new("int32_t *")
    check(lib.ps_vocab_with(pointer, attributes, ffi.NULL, 0, count))
    ids = ffi.new("int32_t[]", max(1, count[0]))
    check(lib.ps_vocab_with(pointer, attributes, ids, count[0], count))
    return list(ids[0 : count[0]])


class WordFinder:
    """Finds a vocabulary's single-token words in texts; at each place the longest, as in llama.cpp."""

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab

    @cached_property
    def _everywhere(self) -> _Words:
        """Words that are tokens in any text. llama.cpp makes some of them control words too, such as those that end an answer."""
        return self._with(set(tokens_with(self._vocab, _ALWAYS)) - set(tokens_with(self._vocab, _PARSED)))  # fmt: skip

    @cached_property
    def _parsed(self) -> _Words:
        """Those, and control words."""
        return self._with(tokens_with(self._vocab, _ALWAYS | _PARSED))

    def _with(self, tokens: Iterable[int]) -> _Words:
        text = llama_cpp.llama_vocab_get_text
        return _Words({text(self._vocab, token): token for token in tokens})

    def split(self, text: bytes, special: bool) -> Iterator[bytes | int] | None:
        """Return the stretches of a text and the tokens between them; None if it is short.

        special: whether control words are tokens too.
        """
        if len(text) < SHORT:
            return None
        return self._pieces(text, self._parsed if special else self._everywhere)

    def _pieces(self, text: bytes, words: _Words) -> Iterator[bytes | int]:
        at, strip = 0, False
        for start, end in words.places(text):
            token = words.ids[text[start:end]]
            attr = llama_cpp.llama_vocab_get_attr(self._vocab, token)
            piece = text[at:start].lstrip(_SPACE) if strip else text[at:start]
            if attr & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP:
                piece = piece.rstrip(_SPACE)
            if piece:
                yield piece
            yield token
            at, strip = end, bool(attr & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP)
        if piece := text[at:].lstrip(_SPACE) if strip else text[at:]:
            yield piece


class _Words:
    """Words by id. Where one can begin is found by its first two bytes, and how long it is by trying the lengths there are."""

    def __init__(self, ids: dict[bytes, int]) -> None:
        ids.pop(b"", None)
        self.ids = ids
        lengths: dict[bytes, set[int]] = {}
        for word in ids:
            lengths.setdefault(word[:2], set()).add(len(word))
        self._lengths = {start: sorted(each, reverse=True) for start, each in lengths.items()}
        starts = sorted(lengths, key=len, reverse=True)
        self._starts = re.compile(b"|".join(map(re.escape, starts)) or rb"(?!)")

    def places(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield where words begin and end, one after the other."""
        at = 0
        while match := self._starts.search(text, at):
            start = match.start()
            at = start + self._length(text, start, match[0])
            if at > start:
                yield start, at
            else:
                at = start + 1

    def _length(self, text: bytes, start: int, head: bytes) -> int:
        for first in {head: None, head[:1]: None}:
            for n in self._lengths.get(first, ()):
                if text[start : start + n] in self.ids:
                    return n
        return 0


def tokens_by_piece(
    pieces: Iterator[bytes | int], tokens_of: Callable[[bytes], list[int]]
) -> list[int]:
    """Return the tokens of the pieces that `WordFinder.split` returns. Raises InputError if that takes longer than BUDGET_S."""
    known: dict[bytes, list[int]] = {}
    found: list[int] = []
    end = monotonic() + BUDGET_S
    for piece in pieces:
        if isinstance(piece, int):
            found.append(piece)
            continue
        if (tokens := known.get(piece)) is None:
            if monotonic() > end:
                raise InputError(
                    f"turning the text into tokens takes longer than {BUDGET_S:.0f} s",
                    "send it in parts",
                )
            tokens = tokens_of(piece)
            if len(piece) <= _REPEATED and len(known) < _MAX_KNOWN:
                known[piece] = tokens
        found += tokens
    return found
