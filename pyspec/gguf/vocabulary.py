"""Whether two files have the same tokens by llama.cpp's own test (common/speculative.cpp), from a few hashes of each.

The test: the same type of tokenizer; the same BOS token if one is added, the same EOS token if one is added; sizes at most 128
apart; and the same texts for all shared ids from 5 on.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

import msgspec

from pyspec.gguf.reader import STRING, Array, Header

TOKENS = "tokenizer.ggml.tokens"

MAX_DIFFERENCE = 128
"""Largest difference in vocabulary size: models of one family may be padded differently."""

FIRST_COMPARED = 5
"""The first id whose text is compared: files of one family write the special tokens before it differently."""

_MARKS, _MAX_MARKS = (3, 4), 64
"""Token types that count as marks, control and user-defined, and how many marks are kept."""
_TYPES = {
    "llama": "SPM", "bert": "WPM", "gpt2": "BPE", "hybriddna": "BPE", "whitespace": "BPE", "gemma4": "BPE",
    "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLAMO2",
}  # fmt: skip
"""llama.cpp's tokenizer types (src/llama-vocab.cpp)."""

_BOS = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon"
_BOS_FIRST = frozenset(_BOS.split())
"""Pre-tokenizers that add BOS if the file does not say."""

_ENDS = {"SPM": (1, 2), "WPM": (101, None), "BPE": (11, 11), "UGM": (None, 1), "PLAMO2": (1, 2)}
"""BOS and EOS of each type if the file names none."""


class VocabularyHash(msgspec.Struct, frozen=True):
    """What the test needs of a file.

    kind: type of tokenizer. bos, eos: the token added at the beginning or end of each text, -1 for none. base: the first id
    of the last whole block of 128 tokens. before, upto: hashes of the texts of ids [5, base) and [5, base + 128). tail:
    checksums of the texts from base on, 8 digits each. marks: the first control and user-defined tokens, ids and texts.
    """

    kind: str
    size: int
    bos: int
    eos: int
    base: int
    before: str
    upto: str
    tail: str
    marks: tuple[tuple[int, str], ...] = ()

    def fits(self, other: VocabularyHash) -> bool:
        """Whether llama.cpp lets one model draft for the other."""
        one, two = sorted((self, other), key=lambda each: each.size)
        if (one.kind, one.bos, one.eos) != (two.kind, two.bos, two.eos):
            return False
        if two.size - one.size > MAX_DIFFERENCE:
            return False
        moved = two.base > one.base  # by one block at most, where the sizes are so near
        if two.before != (one.upto if moved else one.before):
            return False
        shared = 8 * (one.size - two.base)
        return one.tail[8 * (two.base - one.base) :] == two.tail[: max(0, shared)]


def read_vocabulary(header: Header) -> VocabularyHash | None:
    """Return the vocabulary of a file; None if it has none of a type that llama.cpp knows."""
    texts, kind = compared(words_of(header)), _TYPES.get(str(_key(header, "model")))
    if not texts or kind is None:
        return None
    base = max(0, len(texts) // MAX_DIFFERENCE - 1) * MAX_DIFFERENCE
    bos, eos = _ends(header, kind, len(texts))
    sums = (zlib.crc32(texts[i]) if i >= FIRST_COMPARED else 0 for i in range(base, len(texts)))
    return VocabularyHash(
        kind=kind, size=len(texts), bos=bos, eos=eos, base=base,
        before=_hash(texts[FIRST_COMPARED:base]),
        upto=_hash(texts[FIRST_COMPARED : base + MAX_DIFFERENCE]),
        tail="".join(f"{each:08x}" for each in sums),
        marks=_marks(header, texts),
    )  # fmt: skip


def words_of(header: Header) -> list[bytes]:
    """Return the texts of the vocabulary's tokens; empty if it is not a list of strings."""
    tokens = header.metadata.get(TOKENS)
    is_list = isinstance(tokens, Array) and tokens.type == STRING
    return list(header.array(TOKENS)) if is_list else []


def compared(words: Sequence[bytes]) -> list[bytes]:
    """Return tokens as llama.cpp compares them: as C strings, with made-up names for empty ones."""
    return [word.partition(b"\0")[0] or b"[EMPTY_%d]" % i for i, word in enumerate(words)]


def _key(header: Header, name: str) -> object:
    return header.metadata.get(f"tokenizer.ggml.{name}")


def _hash(texts: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def _ends(header: Header, kind: str, size: int) -> tuple[int, int]:
    """Return BOS and EOS as llama.cpp finds them: -1 if none is added, -2 if one would be added but does not exist."""
    model, pre = str(_key(header, "model")), str(_key(header, "pre"))
    begins = kind in ("SPM", "WPM") or (kind == "BPE" and pre in _BOS_FIRST)
    bos, eos = _ENDS.get(kind, (None, None)) if model != "gemma4" else (None, None)
    always = model == "gemma4"  # whatever the file says
    first = (
        _named(header, "bos", bos, size) if always else _end(header, "bos", bos, size, added=begins)
    )
    return first, _end(header, "eos", eos, size, added=kind == "UGM")


def _end(header: Header, name: str, default: int | None, size: int, *, added: bool) -> int:
    stated = _key(header, f"add_{name}_token")
    if isinstance(stated, bool):
        added = stated
    return _named(header, name, default, size) if added else -1


def _named(header: Header, name: str, default: int | None, size: int) -> int:
    stated = _key(header, f"{name}_token_id")
    own = stated if type(stated) is int and 0 <= stated < size else default
    return own if own is not None and own < size else -2


def _marks(header: Header, texts: Sequence[bytes]) -> tuple[tuple[int, str], ...]:
    import numpy as np  # noqa: PLC0415 - a header whose words are known is not read this far

    kinds = header.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, Array) or kinds.type == STRING:
        return ()
    listed = header.array("tokenizer.ggml.token_type")[: len(texts)]  # it may be longer
    marked = np.flatnonzero(np.isin(listed, _MARKS)).tolist()
    marks = [int(i) for i in marked if not texts[i].startswith(b"[PAD")]  # padding in older files
    return tuple((i, texts[i].decode("utf-8", "replace")[:64]) for i in marks[:_MAX_MARKS])
