"""Rules that a GGUF header must keep to be a model, and `read_header`, the entrance to them.

Each rule stands for something that makes llama.cpp abort (layers outside 1..512, equal token
strings) or open files it should not (split files).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pyspec.errors import ModelInvalid
from pyspec.store.cursor import show
from pyspec.store.gguf import STRING, Array, Header, Value, parse_header

if TYPE_CHECKING:
    import os

__all__ = ["MAX_LAYERS", "MAX_PARTS", "MAX_VOCAB", "read_header"]

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
MAX_VOCAB = 1 << 20
MAX_PARTS = 1024
_PART = re.compile(r"(?P<prefix>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_TOKENS = "tokenizer.ggml.tokens"


def read_header(
    path: str | os.PathLike[str], *, model: bool = True, weights: bool = True
) -> Header:
    """Reads and checks the header of a GGUF file, with all its parts if it is split.

    With `model=False` only the format is checked, for sidecars and later parts; with `weights=False` a
    vocabulary without weights is a model too. Raises
    ModelNotFound, ModelUnreadable or ModelInvalid and nothing else.
    """
    header = parse_header(Path(path))
    if not model:
        return header
    header = _join_parts(header)
    if weights:
        _check_shape(header)
    _check_vocabulary(header)
    return header


def _bad(header: Header, what: str, hint: str = "") -> ModelInvalid:
    return ModelInvalid(f"{show(header.path.name)}: {what}", hint)


def _check_shape(header: Header) -> None:
    if not header.architecture:
        raise _bad(header, "general.architecture is missing, so this is no model")
    if not header.tensors:
        raise _bad(header, "it holds no tensors")
    layers = header.of_arch("block_count")
    if type(layers) is not int or not 1 <= layers <= MAX_LAYERS:
        raise _bad(header, f"block_count is {_value(layers)}, outside 1..{MAX_LAYERS}")
    if not _heads(header):
        raise _bad(header, "attention.head_count is 0")


def _heads(header: Header) -> bool:
    """Whether some layer has attention heads, or the architecture is recurrent and has none."""
    heads = header.of_arch("attention.head_count")
    recurrent = (".ssm.", ".wkv.", ".shortconv.")
    if any(mark in key for key in header.metadata for mark in recurrent):
        return True
    if isinstance(heads, Array):
        values = header.array(f"{header.architecture}.attention.head_count")
        return not isinstance(values, list) and bool(np.any(values > 0))
    return heads is None or (type(heads) is int and heads > 0)


def _value(value: Value | int | None) -> str:
    return "missing" if value is None else repr(value)[:80]


def _check_vocabulary(header: Header) -> None:
    tokens = header.metadata.get(_TOKENS)
    if tokens is None:
        return  # llama.cpp takes models without a vocabulary (tokenizer "none")
    if not isinstance(tokens, Array) or tokens.type != STRING:
        raise _bad(header, f"{_TOKENS} is not a list of strings")
    if tokens.count > MAX_VOCAB:
        raise _bad(header, f"{_TOKENS} has {tokens.count} entries, more than {MAX_VOCAB}")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        other = header.metadata.get(key)
        if other is not None and not (isinstance(other, Array) and other.count >= tokens.count):
            raise _bad(header, f"{key} is shorter than the {tokens.count} tokens")
    _check_unique(header)


def _check_unique(header: Header) -> None:
    words = header.array(_TOKENS)
    if not isinstance(words, list):
        raise _bad(header, f"{_TOKENS} is not a list of strings")
    if words and not any(words):
        raise _bad(header, f"all of its {len(words)} tokens are empty strings")
    different = set(words)
    if len(different) == len(words) and b"" not in different and b"\0" not in b"".join(words):
        return  # the usual case, without a step per word
    # llama.cpp reads each as a C string and gives empty ones a name of their own, then asserts that
    # all differ; so compare what it compares.
    seen = [w.partition(b"\0")[0] or b"[EMPTY_%d]" % i for i, w in enumerate(words)]
    if len(set(seen)) == len(seen):
        return
    first: dict[bytes, int] = {}
    for i, word in enumerate(seen):
        if (j := first.setdefault(word, i)) != i:
            raise _bad(header, f"tokens {j} and {i} are the same string {show(word)}")


def _join_parts(header: Header) -> Header:
    """Checks the other parts of a split file; only siblings of the named pattern are opened."""
    count = header.metadata.get("split.count", 0)
    if type(count) is not int or not 0 <= count <= MAX_PARTS:
        raise _bad(header, f"split.count is {_value(count)}, outside 0..{MAX_PARTS}")
    if count <= 1:
        return header
    for key, text in header.metadata.items():
        if isinstance(text, str) and key.startswith(("split.", "general.")) and _climbs(text):
            raise _bad(header, f"{show(key)} holds a path: {show(text)}")
    match = _PART.fullmatch(header.path.name)
    if match is None or (int(match["no"]), int(match["count"])) != (1, count):
        wanted = f"NAME-00001-of-{count:05d}.gguf"
        raise _bad(header, f"it is a part of {count}, so its name must be like {wanted}")
    tensors, parts = list(header.tensors), [header.path]
    for no in range(count):
        part = header.path.with_name(f"{match['prefix']}-{no + 1:05d}-of-{count:05d}.gguf")
        found = header if no == 0 else _read_part(header, part)
        if (found.metadata.get("split.no"), found.metadata.get("split.count")) != (no, count):
            raise _bad(found, f"it does not say that it is part {no + 1} of {count}")
        if no:
            tensors += found.tensors
            parts.append(part)
    _check_total(header, len(tensors), len({t.name for t in tensors}))
    return replace(header, tensors=tuple(tensors), parts=tuple(parts))


def _read_part(header: Header, part: Path) -> Header:
    if not part.is_file():
        raise _bad(header, f"its part {show(part.name)} is missing", "put all parts in one folder")
    return parse_header(part)


def _check_total(header: Header, n_tensors: int, n_names: int) -> None:
    said = header.metadata.get("split.tensors.count", n_tensors)
    if said != n_tensors or n_names != n_tensors:
        raise _bad(
            header, f"its parts hold {n_tensors} tensors ({n_names} names), not {_value(said)}"
        )


def _climbs(text: str) -> bool:
    return "../" in text or "..\\" in text
