"""Tokens of a file: whether two files have the same, and whether a table of characters is sound.

The same is meant by llama.cpp's own test (common/speculative.cpp), from a few hashes of each: the same type of tokenizer, BOS
token if one is added, and EOS token if one is added; sizes at most 128 apart; and the same texts for all shared ids from 5 on.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from pyspec.gguf.reader import STRING, Array, Header

TOKENS = "tokenizer.ggml.tokens"

MAX_DIFFERENCE = 128  # in vocabulary size: models of one family may be padded differently
FIRST_COMPARED = 5  # the first id whose text is compared: files of one family write the special tokens before it differently
_MARKS, _MAX_MARKS = (3, 4), 64  # types of tokens, control and user-defined; most to keep
_TYPES = {
    "llama": "SPM", "bert": "WPM", "gpt2": "BPE", "hybriddna": "BPE", "whitespace": "BPE", "gemma4": "BPE",
    "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLAMO2",
}  # fmt: skip
"""llama.cpp's tokenizer types (src/llama-vocab.cpp)."""

_BOS = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon"
_BOS_FIRST = frozenset(_BOS.split())  # pre-tokenizers that add BOS if the file does not say

_ENDS = {"SPM": (1, 2), "WPM": (101, None), "BPE": (11, 11), "UGM": (None, 1), "PLAMO2": (1, 2)}
"""BOS and EOS of each type if the file names none."""


class VocabularyHash(msgspec.Struct, frozen=True):
    """What the test needs of a file."""

    kind: str  # of tokenizer
    size: int
    bos: int  # the token added at the beginning of each text, -1 for none
    eos: int  # at the end
    base: int  # the first id of the last whole block of 128 tokens
    before: str  # hash of the texts of ids [5, base)
    upto: str  # of ids [5, base + 128)
    tail: str  # checksums of the texts from base on, 8 digits each
    marks: tuple[tuple[int, str], ...] = ()  # the first control and user-defined tokens

    def fits(self, other: VocabularyHash) -> bool:
        """Whether llama.cpp lets one model draft for the other."""
        return not self.difference(other)

    def difference(self, other: VocabularyHash) -> str:
        """Return in what two vocabularies differ by llama.cpp's test; empty if one model may draft for the other."""
        for name, what in _TRAITS.items():
            if getattr(self, name) != getattr(other, name):
                return what
        one, two = sorted((self, other), key=lambda each: each.size)
        if two.size - one.size > MAX_DIFFERENCE:
            return "number of tokens"
        moved = two.base > one.base  # by one block at most, where the sizes are so near
        shared = max(0, 8 * (one.size - two.base))
        equal = one.tail[8 * (two.base - one.base) :] == two.tail[:shared]
        return "" if equal and two.before == (one.upto if moved else one.before) else "tokens"


_TRAITS = {
    "kind": "type of tokenizer",
    "bos": "token before a text (BOS)",
    "eos": "token after a text (EOS)",
}
"""What must agree besides the tokens, by fields of `VocabularyHash`."""


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
    last = _end(header, "eos", eos, size, added=kind == "UGM")
    if model == "gemma4":  # whatever the file says
        return _named(header, "bos", bos, size), last
    return _end(header, "bos", bos, size, added=begins), last


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


# -- the table of characters -------------------------------------------------------------------------------------------

# Of a unigram tokenizer: a double array (Kanda 2018, as SentencePiece compiles it) and the texts that its leaves point to.
# llama.cpp walks it at each position of a text, and throws through C if a step leaves the array or a text has no end. It is
# unknown which inputs do that, so the whole table is walked here.

LARGEST_TABLE = 1 << 20  # largest table, bytes; SentencePiece's own are a quarter of that
DEEPEST = 255  # longest entry, bytes: each position of a text may cost as many steps

_HAS_TEXT, _WIDE, _VALUE = 1 << 8, 1 << 9, 0x7FFFFFFF


def fault_of(table: bytes) -> str:
    """Return what is wrong with a table, or the empty string."""
    import numpy as np  # noqa: PLC0415 - few headers have one

    if len(table) < 5:
        return "is too short"
    if len(table) > LARGEST_TABLE:
        return f"is larger than {LARGEST_TABLE >> 20} MiB"
    size = int.from_bytes(table[:4], "little")
    if size + 4 >= len(table):
        return "ends before its texts"
    nodes = np.frombuffer(table, np.uint32, size // 4, 4)
    return _walk(nodes, table[4 + size :].rfind(b"\0")) if len(nodes) else ""


def _walk(nodes: Any, last_end: int) -> str:
    """Visit all nodes that any text reaches, one byte per step. last_end: where the last text ends.

    A node is reached only by the byte it names, so only from one place: its index XOR that byte.
    """
    import numpy as np  # noqa: PLC0415 - as above

    labels = (nodes & 0xFF).astype(np.int64)
    bases = ((nodes >> 10) << ((nodes & _WIDE) >> 6)).astype(np.int64)
    steps = np.flatnonzero((labels != 0) & (nodes <= _VALUE))
    start, end = steps ^ labels[steps], steps ^ bases[steps]
    reached = bases[:1]
    for _ in range(DEEPEST + 1):
        if np.any(reached | 0xFF >= len(nodes)):  # a byte leads anywhere among 256 nodes
            return "leads beyond its end"
        here = np.zeros(len(nodes), bool)
        here[reached] = True
        taken = (start < len(nodes)) & here[np.minimum(start, len(nodes) - 1)]
        if not taken.any():
            return ""
        reached = end[taken]
        texts = reached[(nodes[steps[taken]] & _HAS_TEXT) != 0]
        if np.any(texts >= len(nodes)):
            return "leads beyond its end"
        if np.any((nodes[texts] & _VALUE).astype(np.int64) > last_end):
            return "names a text that has no end"
    return f"has entries of more than {DEEPEST} bytes"
