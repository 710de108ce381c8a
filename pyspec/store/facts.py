"""What a model file is, found out once: architecture, type, vocabulary; for lists and for finding drafts."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from pyspec.errors import ModelError
from pyspec.store.fingerprint import recall, remember, stamp
from pyspec.store.gguf import Array, Header, parse_header

__all__ = ["Facts", "facts_of"]

_KIND = "facts 2"
_RECURRENT = (".ssm.", ".wkv.", ".shortconv.")

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""llama.cpp's numbers of file types (enum llama_ftype)."""


class Facts(msgspec.Struct, frozen=True):
    """What the header says.

    vocabulary: hash of tokenizer, end tokens and token texts, padding at the end left out: files of equal ones can
    draft for each other. Empty without a tokenizer. name: what the file calls itself. recurrent: it has a state that cannot be
    rolled back.
    """

    architecture: str
    type: str
    name: str
    n_vocab: int
    vocabulary: str
    size: int
    width: int = 0
    recurrent: bool = False


def facts_of(path: Path) -> Facts | None:
    """The facts of a file, from the cache where it has not changed; None for what is no model."""
    try:
        at = stamp(path)
        known = recall(_KIND, at)
        if known is not None:
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(known, type=Facts)
        header = parse_header(path)
        facts = _read(header)
    except (ModelError, OSError):
        return None
    if facts is not None:
        remember(_KIND, at, msgspec.json.encode(facts).decode())
    return facts


def _read(header: Header) -> Facts | None:
    if not header.architecture:
        return None
    width = header.of_arch("embedding_length")
    return Facts(
        architecture=header.architecture,
        type=_type(header),
        name=str(header.metadata.get("general.name", "")),
        n_vocab=header.vocab_size,
        vocabulary=_vocabulary(header),
        size=_size(header),
        width=width if isinstance(width, int) else 0,
        recurrent=any(mark in key for key in header.metadata for mark in _RECURRENT),
    )


def _size(header: Header) -> int:
    """Bytes of the file, of all parts where it is split."""
    count = header.metadata.get("split.count", 0)
    if type(count) is not int or count <= 1:
        return header.file_size
    ending = f"-00001-of-{count:05d}.gguf"
    prefix = header.path.name.removesuffix(ending)
    parts = header.path.parent.glob(f"*-of-{count:05d}.gguf")
    return sum(p.stat().st_size for p in parts if p.name.startswith(prefix))


def _type(header: Header) -> str:
    number = header.metadata.get("general.file_type")
    if type(number) is int and number in _FILE_TYPES:
        return _FILE_TYPES[number]
    sizes: dict[str, int] = {}
    for tensor in header.tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.nbytes
    return max(sizes, key=lambda kind: sizes[kind]) if sizes else ""


def _vocabulary(header: Header) -> str:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Array):
        return ""
    words = header.array("tokenizer.ggml.tokens")
    if not isinstance(words, list):
        return ""
    last = len(words)
    while last and words[last - 1].startswith(b"[PAD"):  # sizes of a family are padded differently
        last -= 1
    digest = hashlib.sha256(b"\0".join(words[:last]))
    for key in ("model", "bos_token_id", "eos_token_id"):
        digest.update(repr(header.metadata.get(f"tokenizer.ggml.{key}")).encode())
    return digest.hexdigest()
