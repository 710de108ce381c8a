"""A model's tokens as llguidance has them, and those that come between an answer's values: what a grammar forces, and spaces."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, ClassVar

import llama_cpp
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from pyspec.errors import InputError
from pyspec.grammar.schemas import LIMITS, STACK
from pyspec.vocab import all_pieces, call_with_stack, piece_reader, tokens_with

SIMPLER = "make the grammar or the schema simpler"

# llguidance's prefix of tokens that no text contains
_SPECIAL = b"\xff"
_NO_TEXT = (
    llama_cpp.LLAMA_TOKEN_ATTR_CONTROL
    | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    | llama_cpp.LLAMA_TOKEN_ATTR_UNUSED
)


class _Source:
    """What `LLTokenizer` reads. Texts become bytes: only the caller knows which tokens the model would use."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, tokens: list[bytes], end: int, byte_ids: Sequence[int]) -> None:
        self.tokens, self.eos_token_id, self._byte_ids = tokens, end, byte_ids

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._byte_ids[byte] for byte in data]


class ByteVocabulary:
    """Tokens as bytes. Some ids beyond the model's stand for single bytes, with which a matcher reads a part of a token."""

    _all: ClassVar[weakref.WeakKeyDictionary[Any, ByteVocabulary]] = weakref.WeakKeyDictionary()
    _guard = threading.Lock()

    def __init__(self, vocab: Any) -> None:
        self.n: int = llama_cpp.llama_vocab_n_tokens(vocab)  # tokens of the model
        self.ends = [t for t in range(self.n) if llama_cpp.llama_vocab_is_eog(vocab, t)]
        # agents send the same grammars with each request; a proxy, so that no cycle keeps the tokens
        self._begun = lru_cache(maxsize=32)(partial(_begun, weakref.proxy(self)))
        self.piece = piece_reader(vocab, special=True)
        tokens = all_pieces(vocab)
        silent = {*tokens_with(vocab, _NO_TEXT), *self.ends}
        for token in silent | {t for t, text in enumerate(tokens) if not text}:
            tokens[token] = _named(token, tokens[token])
        first: dict[bytes, int] = {}
        for token, data in enumerate(tokens):
            first.setdefault(data, token)
        for byte in range(256):
            if bytes([byte]) not in first:
                first[bytes([byte])] = len(tokens)
                tokens.append(bytes([byte]))
        self.byte_ids = [first[bytes([byte])] for byte in range(256)]  # a token for each byte
        same = {t: first[data] for t, data in enumerate(tokens) if first[data] != t}
        same |= dict.fromkeys(self.ends[1:], self.ends[0] if self.ends else 0)
        self._same = same
        self._twins = np.array([*same.keys()], int), np.array([*same.values()], int)
        ends = self.ends or [len(tokens)]
        tokens += [] if self.ends else [_SPECIAL + b"<end>"]
        source = _Source(tokens, ends[0], self.byte_ids)
        self.tokenizer = LLTokenizer(source, n_vocab=len(tokens), eos_token=ends[0])  # type: ignore[arg-type]

    @classmethod
    def of(cls, llama: Any) -> ByteVocabulary:
        with cls._guard:
            if llama not in cls._all:
                cls._all[llama] = cls(llama._model.vocab)
            return cls._all[llama]

    def matcher(self, grammar: str) -> LLMatcher:
        """Return a new matcher of a grammar. Raises InputError for one that cannot be used."""
        return self._begun(grammar).deep_copy()

    def read(self, token: int) -> int:
        """Return the id under which llguidance knows a token: of several with one text, and of all ends, it knows the first."""
        return self._same.get(token, token)

    def allowed(self, mask: bytes) -> npt.NDArray[np.bool_]:
        """Return which tokens a mask of llguidance allows, as [n] booleans."""
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").view(np.bool_)
        twins, firsts = self._twins
        bits[twins] = bits[firsts]
        return bits[: self.n]


def _begun(vocabulary: ByteVocabulary, grammar: str) -> LLMatcher:
    def begin() -> LLMatcher:
        matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=LIMITS)
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            raise InputError(f"the grammar cannot be used: {reason(matcher)}", SIMPLER)
        if not vocabulary.allowed(mask).any():
            raise InputError("the grammar allows no token of this vocabulary", SIMPLER)
        return matcher

    return call_with_stack(begin, STACK)


def reason(matcher: LLMatcher) -> str:
    """The first lines of an error; more of them would repeat the grammar."""
    lines = [line.strip() for line in matcher.get_error().splitlines()[:4]]
    return " ".join(filter(None, lines))[:200]


def _named(token: int, text: bytes) -> bytes:
    """What stands for a token that is no text: a name of its own."""
    return _SPECIAL + (text if text[:1] + text[-1:] == b"<>" else b"<[%d]>" % token)


# -- between values ----------------------------------------------------------------------------------------------------

SPACES = b" \n\t\r"
_OPENED, _CLOSED = b"{[", b"}]"


@dataclass(slots=True)
class Spacing:
    """Reads an answer's bytes, and says which spaces come behind them.

    At first these are what most models write: one space behind colons and commas. If an object or list begins with a new line,
    each of its parts and its end are expected on a line of their own. What is inside is expected to be written the same way.
    """

    before: bytes = b""  # the last character that is no space
    space: bytes = b""  # the spaces since then
    # whether each open object or list has its parts on lines
    lines: list[bool] = field(default_factory=list)
    nested: dict[bytes, bool] = field(default_factory=dict)
    """Whether the last objects and lists had, by the character that opens them."""
    unit: bytes = b"  "  # one level's indent
    _colon: bytes = b" "
    _comma: bytes = b" "
    _quoted: bool = False
    _escaped: bool = False

    def copy(self) -> Spacing:
        """Return one that reads on by itself."""
        return replace(self, lines=[*self.lines], nested={**self.nested})

    def read(self, text: bytes) -> None:
        for at in range(len(text)):
            self._read(text[at : at + 1])

    def _read(self, char: bytes) -> None:
        if self._quoted:
            self._quoted = self._escaped or char != b'"'
            self._escaped = char == b"\\" and not self._escaped
            self.before = char
        elif char in SPACES:
            self.space += char
        else:
            self._learn(char)
            if char in _OPENED:
                self.lines.append(self.nested.get(char, self.lines[-1] if self.lines else False))
            elif char in _CLOSED and self.lines:
                self.lines.pop()
            self._quoted = char == b'"'
            self.before, self.space = char, b""

    def _learn(self, char: bytes) -> None:
        """Note the spaces between the last character and this one."""
        if self.before == b":":
            self._colon = self.space
        elif self.before == b"," and b"\n" not in self.space:
            self._comma = self.space
        if self.before in (b"{", b"[") and char not in _CLOSED and self.lines:
            self.nested[self.before] = self.lines[-1] = b"\n" in self.space
            indent = self.space.rpartition(b"\n")[2]
            if self.lines[-1] and len(indent) >= len(self.lines):
                self.unit = indent[: len(indent) // len(self.lines)]

    def expected(self, char: bytes) -> bytes:
        """Return the spaces that are still to come before `char`. If it is empty, it stands for any that begins a value."""
        wanted = self._wanted(char)
        return wanted[len(self.space) :] if wanted.startswith(self.space) else b""

    def _wanted(self, char: bytes) -> bytes:
        if self._quoted or not self.lines:
            return b""
        if self.before == b":":
            return self._colon
        inside = self.before in (b"{", b"[", b",")
        # the first line break of an answer is seen before it is learnt
        lined = self.lines[-1] or (inside and b"\n" in self.space)
        if char in (b"}", b"]"):
            closing = lined and not inside
            return b"\n" + self.unit * (len(self.lines) - 1) if closing else b""
        if inside and lined:
            return b"\n" + self.unit * len(self.lines)
        return self._comma if self.before == b"," else b""


_MAX_BYTES = 96
_FEW = 6  # bytes that may come next where little more than spaces is in doubt
_MISSES_ALLOWED = 4
# how llguidance writes a token that is no text, behind a byte 0xff
_MARK = re.compile(rb"\[(\d+)\]")
_SHOWN = 24  # bytes of the answer's end that are tokenized together with what follows


class Skeleton:
    """Foretells the text up to the next value of an answer.

    Where a grammar allows spaces or one other character, spaces come as the answer's layout has them. tokenize:
    `llama_cpp.Llama.tokenize`.
    """

    def __init__(self, vocabulary: ByteVocabulary, tokenize: Callable[..., list[int]]) -> None:
        self._vocabulary, self._tokenize = vocabulary, tokenize
        self._spacing = Spacing()
        self._ids = list[int]()
        self._drafted, self._hits, self._misses = list[int](), 0, 0

    def accept(self, token: int) -> None:
        if self._drafted:
            right = self._drafted.pop(0) == token
            self._misses += not right
            self._hits += right and not self._drafted
            self._drafted = self._drafted if right else []
        self._ids = [*self._ids[-_SHOWN:], token]
        self._spacing.read(self._vocabulary.piece(token))

    def forced(self, matcher: LLMatcher) -> list[int]:
        """Return the tokens of a text that has to come. The last one is left out, since it may end with what comes behind."""
        text, mark = _forced(matcher)
        tokens = self._as_tokens(text)
        return [*tokens, mark] if mark is not None else tokens[:-1]

    def tokens(self, matcher: LLMatcher, *, spaces: bool) -> list[int]:
        """Return the tokens of what is foretold. spaces: False to foretell only what is forced."""
        # some models write them in no regular way
        regular = self._misses <= self._hits + _MISSES_ALLOWED
        text, mark, digit = self._foretold(matcher, spaces=spaces and regular)
        found = self._as_tokens(text + digit)
        if digit:  # a space that is a token of its own before digits
            before = found[:-1]
            same = self._as_tokens(text) == before
            found = before if same else self._as_tokens(text.rstrip(SPACES))
        self._drafted = found if len(text) > 1 or mark is not None else []
        self._drafted += [] if mark is None else [mark]
        return list(self._drafted)

    def _foretold(self, matcher: LLMatcher, *, spaces: bool) -> tuple[bytes, int | None, bytes]:
        """The text, the token behind it that is no text, and a digit if a number comes next."""
        ahead, spacing = matcher.deep_copy(), self._spacing.copy()
        text, mark, digit = b"", None, b""
        while len(text) < _MAX_BYTES and mark is None and not digit:
            forced, mark = _forced(ahead)
            if not forced and mark is None and spaces:
                forced, digit = self._likely(ahead, spacing)
            ids = [self._vocabulary.byte_ids[byte] for byte in forced]
            if not ids or not ahead.consume_tokens(ids):
                break
            text += forced
            spacing.read(forced)
        return text, mark, digit if text[-1:] in SPACES else b""

    def _likely(self, matcher: LLMatcher, spacing: Spacing) -> tuple[bytes, bytes]:
        """The next bytes, if only spaces are in doubt, and a digit if a number comes behind them; nothing otherwise."""
        mask, ids = matcher.compute_bitmask(), self._vocabulary.byte_ids

        def found(bytes_: Iterable[int]) -> bytes:
            return bytes(byte for byte in bytes_ if mask[ids[byte] >> 3] >> (ids[byte] & 7) & 1)

        if matcher.is_accepting() or len(found(b"aeinst")) > 1:  # as within most texts
            return b"", b""
        allowed = found(range(256))
        others = bytes(byte for byte in allowed if byte not in SPACES)
        digit = others[-1:] if others and not others.strip(b"-0123456789") else b""
        if not digit and (len(allowed) > _FEW or len(others) > 1):
            return b"", b""
        wanted = spacing.expected(b"" if digit else others)
        if wanted and wanted[0] in allowed:
            return wanted[:1], digit if len(wanted) == 1 else b""
        return (b"", b"") if digit else (others, b"")

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
    return text[:_MAX_BYTES], int(mark[1]) if mark and len(text) <= _MAX_BYTES else None
