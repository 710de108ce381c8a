"""The text between an answer's values: what a grammar forces, with spaces as the answer has had them so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import accumulate

from llguidance import LLMatcher

from pyspec.errors import InputError
from pyspec.grammar.vocabulary import ByteVocabulary

_MOST_BYTES = 96
_FEW = 6
# bytes that may come next where little more than spaces is in doubt
_SPACES = b" \n\t\r"
_USUAL = {b":": b" ", b",": b" "}
_PATIENCE = 4
_MARK = re.compile(rb"\[(\d+)\]")
# how llguidance writes a token that is no text, behind a byte 0xff
_SHOWN = 24
"""Bytes of the answer's end that are tokenized together with what follows."""


class Skeleton:
    """Foretells the text up to the next value of an answer.

    Where a grammar allows spaces or one other character, spaces come as they last did after the same character: at first as most
    models write JSON. tokenize: `llama_cpp.Llama.tokenize`.
    """

    def __init__(self, vocabulary: ByteVocabulary, tokenize: Callable[..., list[int]]) -> None:
        self._vocabulary, self._tokenize = vocabulary, tokenize
        self._spaces: dict[bytes, bytes] = dict(_USUAL)
        self._ids = list[int]()
        self._before, self._space = b"", b""
        self._drafted, self._hits, self._misses = list[int](), 0, 0

    def accept(self, token: int) -> None:
        """Hear of the answer's next token."""
        if self._drafted:
            right = self._drafted.pop(0) == token
            self._misses += not right
            self._hits += right and not self._drafted
            self._drafted = self._drafted if right else []
        piece = self._vocabulary.piece(token)
        self._ids = [*self._ids[-_SHOWN:], token]
        for at in range(len(piece)):
            char = piece[at : at + 1]
            if char in _SPACES:
                self._space += char
                continue
            if self._before:
                self._spaces[self._before] = self._space
            self._before, self._space = char, b""

    def forced(self, matcher: LLMatcher) -> list[int]:
        """Return the tokens of a text that has to come. The last one is left out, since it may end with what comes behind."""
        text, mark = _forced(matcher)
        tokens = self._as_tokens(text)
        return [*tokens, mark] if mark is not None else tokens[:-1]

    def tokens(self, matcher: LLMatcher, *, spaces: bool) -> list[int]:
        """Return the tokens of what is foretold. spaces: False to foretell only what is forced."""
        # some models write them in no regular way
        regular = self._misses <= self._hits + _PATIENCE
        text, mark = self._foretold(matcher, spaces=spaces and regular)
        self._drafted = self._as_tokens(text) if len(text) > 1 or mark is not None else []
        self._drafted += [] if mark is None else [mark]
        return list(self._drafted)

    def _foretold(self, matcher: LLMatcher, *, spaces: bool) -> tuple[bytes, int | None]:
        ahead, before, space = matcher.deep_copy(), self._before, self._space
        text, mark = b"", None
        while len(text) < _MOST_BYTES and mark is None:
            forced, mark = _forced(ahead)
            if not forced and mark is None and spaces:
                forced = self._likely(ahead, before, space)
            if not forced or not ahead.consume_tokens(self._bytes(forced)):
                break
            text += forced
            bare = forced.rstrip(_SPACES)
            before, space = (bare[-1:], forced[len(bare) :]) if bare else (before, space + forced)
        return text, mark

    def _bytes(self, text: bytes) -> list[int]:
        return [self._vocabulary.byte_ids[byte] for byte in text]

    def _likely(self, matcher: LLMatcher, before: bytes, space: bytes) -> bytes:
        """The next byte, if only spaces are in doubt; nothing otherwise."""
        mask, ids = matcher.compute_bitmask(), self._vocabulary.byte_ids

        def found(bytes_: Iterable[int]) -> list[int]:
            return [byte for byte in bytes_ if mask[ids[byte] >> 3] >> (ids[byte] & 7) & 1]

        if len(found(b"aeinst")) > 1:  # as within most texts
            return b""
        allowed = found(range(256))
        others = [byte for byte in allowed if byte not in _SPACES]
        if matcher.is_accepting() or len(allowed) > _FEW or len(others) > 1:
            return b""
        wanted = self._spaces.get(before, b"")[len(space) : len(space) + 1]
        if wanted and wanted[0] in allowed:
            return wanted
        return bytes(others)

    def _as_tokens(self, text: bytes) -> list[int]:
        """The tokens with which the target would go on, as it would tokenize the answer's end together with the text."""
        if not text:
            return []
        begun = b""
        for token in reversed(self._ids):
            piece = self._vocabulary.piece(token)
            if len(begun) + len(piece) > _SHOWN:
                break
            begun = piece + begun
        return self._behind(begun, text) or (self._behind(b"", text) if begun else [])

    def _behind(self, begun: bytes, text: bytes) -> list[int]:
        """Tokenize both, and return the tokens of the text; nothing if one token has parts of both."""
        try:
            ids = self._tokenize(begun + text, add_bos=False, special=False)
        except InputError:  # the vocabulary cannot spell it
            return []
        pieces = [self._vocabulary.piece(token) for token in ids]
        # some tokenizers put a space in front
        start = sum(map(len, pieces)) - len(text)
        ends = [0, *accumulate(map(len, pieces))]
        return ids[ends.index(start) :] if start in ends else []


def _forced(matcher: LLMatcher) -> tuple[bytes, int | None]:
    """The text that has to come next, and the token behind it that is no text, if that has to come."""
    # a copy, because llguidance spoils a matcher by this if such a token is next
    data = matcher.deep_copy().compute_ff_bytes()
    text, _, behind = data.partition(b"\xff")
    mark = _MARK.match(behind)
    return text[:_MOST_BYTES], int(mark[1]) if mark and len(text) <= _MOST_BYTES else None
