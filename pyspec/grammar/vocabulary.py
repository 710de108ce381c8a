"""A model's vocabulary as llguidance needs it, built once for each model."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from time import perf_counter
from typing import Any, ClassVar

import llama_cpp
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from pyspec.vocab.tokenizer import all_pieces, piece_reader, tokens_with

log = logging.getLogger("pyspec")

_SLOW_S = 1.0
_SPECIAL = b"\xff"
# llguidance's prefix of tokens that no text contains
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
        """Tokens that end an answer."""
        self.begun: OrderedDict[str, LLMatcher] = OrderedDict()
        """Matchers at their beginning, by grammar. `lock` guards them."""
        self.lock = threading.Lock()
        self.nested: dict[bytes, bool] = {}  # how the model last wrote JSON, as in `Spacing`
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
            found = cls._all.get(llama)
            if found is None:
                start = perf_counter()
                found = cls._all[llama] = cls(llama._model.vocab)
                took = perf_counter() - start
                level = logging.INFO if took > _SLOW_S else logging.DEBUG
                log.log(level, "prepared %d tokens for grammars in %.1f s", found.n, took)
            return found

    def read(self, token: int) -> int:
        """Return the id under which llguidance knows a token: of several with one text, and of all ends, it knows the first."""
        return self._same.get(token, token)

    def allowed(self, mask: bytes) -> npt.NDArray[np.bool_]:
        """Return which tokens a mask of llguidance allows, as [n] booleans."""
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").view(np.bool_)
        twins, firsts = self._twins
        bits[twins] = bits[firsts]
        return bits[: self.n]


def _named(token: int, text: bytes) -> bytes:
    """What stands for a token that is no text: a name of its own."""
    return _SPECIAL + (text if text[:1] + text[-1:] == b"<>" else b"<[%d]>" % token)
