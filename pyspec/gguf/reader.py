"""Reader of GGUF headers from untrusted files.

llama.cpp aborts the process on some headers and has had its size checks bypassed four times, so
every file is read here first. All counts, lengths, shapes and offsets are checked against caps and
the size of the file before anything is allocated; Python's integers cannot wrap. Large arrays are
skipped and read on demand (`Header.array`), so a vocabulary of 256k entries takes about a tenth of
a second.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pyspec.errors import ModelInvalid, ModelUnreadable
from pyspec.machine.files import open_regular, show


class BlockType(NamedTuple):
    """A tensor type: its name, and the elements and bytes of one block."""

    name: str
    elements: int
    bytes: int


GGML_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4), 1: BlockType("F16", 1, 2), 2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20), 6: BlockType("Q5_0", 32, 22), 7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34), 9: BlockType("Q8_1", 32, 36), 10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110), 12: BlockType("Q4_K", 256, 144), 13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210), 15: BlockType("Q8_K", 256, 292), 16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74), 18: BlockType("IQ3_XXS", 256, 98), 19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18), 21: BlockType("IQ3_S", 256, 110), 22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136), 24: BlockType("I8", 1, 1), 25: BlockType("I16", 1, 2),
    26: BlockType("I32", 1, 4), 27: BlockType("I64", 1, 8), 28: BlockType("F64", 1, 8),
    29: BlockType("IQ1_M", 256, 56), 30: BlockType("BF16", 1, 2), 34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66), 39: BlockType("MXFP4", 32, 17), 40: BlockType("NVFP4", 64, 36),
    41: BlockType("Q1_0", 128, 18), 42: BlockType("Q2_0", 64, 18),
}  # fmt: skip

MAX_STRING = 1 << 20
MAX_HEADER = 64 << 20
RESUME = "fetch it again with `pyspec models pull`, or copy it again"
MAX_KV = 4096
MAX_TENSORS = 65536
MAX_DIMS = 4
MAX_NAME = 63
MAX_ALIGNMENT = 4096
INT64_MAX = (1 << 63) - 1

STRING, ARRAY = 8, 9
SCALARS: dict[int, struct.Struct] = {
    i: struct.Struct("<" + code)
    for i, code in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_U32, _U64 = SCALARS[4], SCALARS[10]


@dataclass(frozen=True, slots=True)
class Array:
    """A skipped array of the header: element type id, count, offset in the file."""

    type: int
    count: int
    offset: int


Value = int | float | bool | str | Array  # the value of a metadata entry


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: name, type name, shape (innermost first), offset in the file, bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file, checked for contradictions. parts: its files, one unless it is split."""

    path: Path
    file_size: int
    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    parts: tuple[Path, ...]

    @property
    def architecture(self) -> str:
        """`general.architecture`, or the empty string."""
        value = self.metadata.get("general.architecture", "")
        return value if isinstance(value, str) else ""

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the tokenizer's list, 0 if there is none."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.count if isinstance(tokens, Array) else 0

    def of_arch(self, key: str) -> Value | None:
        """Return the value of `<architecture>.<key>`, or None."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def tensor_types(self) -> dict[str, int]:
        """Count the tensors of each type, most frequent first."""
        return dict(Counter(t.type for t in self.tensors).most_common())

    def array(self, key: str) -> Any:
        """Read an array: bytes for strings, else numpy's. Raises KeyError if it is none, ModelError if the file has changed."""
        value = self.metadata[key]
        if not isinstance(value, Array):
            raise KeyError(key)
        with opened(self.path) as cursor:
            cursor.skip(value.offset, show(key))
            if value.type == STRING:
                return cursor.strings(value.count, show(key), keep=True)
            scalar = SCALARS[value.type]
            raw = cursor.take(value.count * scalar.size, show(key))
            import numpy as np  # noqa: PLC0415 - most headers are read without their arrays

            return np.frombuffer(raw, dtype=np.dtype(scalar.format))


# -- reading -----------------------------------------------------------------------------------------------------------


class Cursor:
    """A position in the header. Every read is first checked against the file size and the header cap.

    Only the file's buffer is in memory, so a hostile header costs no more than a valid one.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name, self.pos = file, name, 0
        self.size = os.fstat(file.fileno()).st_size

    def bad(self, what: str, hint: str = "") -> ModelInvalid:
        return ModelInvalid(f"{show(self.name)}: {what}", hint)

    def need(self, n: int, what: str) -> None:
        """Raise ModelInvalid if the next `n` bytes are not in the file, or are beyond the cap."""
        end = self.pos + n
        if end > self.size:
            raise self.bad(f"{what} reaches past the end of the file", RESUME)
        if end > MAX_HEADER:
            raise self.bad(f"{what} makes the header larger than {MAX_HEADER >> 20} MiB")

    def take(self, n: int, what: str) -> bytes:
        self.need(n, what)
        data = self.file.read(n)
        if len(data) < n:
            raise self.bad(f"the file shrank while {what} was read", RESUME)
        self.pos += n
        return data

    def skip(self, n: int, what: str) -> None:
        self.need(n, what)
        self.pos = self.file.seek(self.pos + n)

    def scalar(self, kind: struct.Struct, what: str) -> Any:
        return kind.unpack(self.take(kind.size, what))[0]

    def string(self, what: str) -> bytes:
        """Read a string of at most 1 MiB."""
        n = self.scalar(_U64, f"the length of {what}")
        if n > MAX_STRING:
            raise self.bad(f"{what} claims {n} bytes, more than {MAX_STRING >> 20} MiB")
        return self.take(n, what)

    def strings(self, count: int, what: str, keep: bool) -> list[bytes]:
        """Read or skip `count` strings in a tight loop, since vocabularies have 256k of them."""
        self.need(8 * count, what)
        out: list[bytes] = []
        read, unpack, most = self.file.read, _U64.unpack, min(self.size, MAX_HEADER)
        try:
            for _ in range(count):
                (n,) = unpack(read(8))
                if n > MAX_STRING:
                    raise self.bad(f"a string of {what} claims {n} bytes")
                self.pos += 8 + n
                if self.pos > most:
                    self.need(0, what)
                text = read(n)
                if keep:
                    out.append(text)
        except struct.error:
            raise self.bad(f"{what} reaches past the end of the file", RESUME) from None
        if self.file.tell() != self.pos:
            raise self.bad(f"the file shrank while {what} was read", RESUME)
        return out


@contextmanager
def opened(path: Path) -> Iterator[Cursor]:
    """Open a file at its beginning. Raises ModelNotFound or ModelUnreadable, also for errors while reading."""
    with open_regular(path) as file:
        try:
            yield Cursor(file, path.name)
        except OSError as error:
            raise ModelUnreadable(f"cannot read {show(path.name)}: {error.strerror}") from error


def parse_header(path: Path) -> Header:
    """Read one file's header, without the checks for models. Raises only ModelNotFound, ModelUnreadable or ModelInvalid."""
    with opened(path) as cursor:
        version, n_tensors, n_kv = _counts(cursor)
        metadata = _metadata(cursor, n_kv)
        alignment = _alignment(cursor, metadata)
        infos = [_tensor_info(cursor, i) for i in range(n_tensors)]
        data = -(-cursor.pos // alignment) * alignment
        tensors = _place(cursor, infos, data, alignment)
        return Header(path, cursor.size, version, metadata, tensors, (path,))


def _counts(c: Cursor) -> tuple[int, int, int]:
    kind = "not a GGUF v2/v3 file"
    magic = c.take(min(c.size, 4), "the magic")
    if c.size < _LEAST or magic != b"GGUF":
        raise _no_gguf(c, magic + c.take(min(c.size, 64) - c.pos, "the beginning"))
    version: int = c.scalar(_U32, "the version")
    if version & 0xFFFF == 0:
        raise c.bad(f"{kind}: it is big-endian, or damaged")
    if version not in (2, 3):
        raise c.bad(f"{kind}: its version is {version}")
    n_tensors: int = c.scalar(_U64, "the number of tensors")
    n_kv: int = c.scalar(_U64, "the number of metadata entries")
    if n_tensors > MAX_TENSORS:
        raise c.bad(f"the number of tensors is {n_tensors}, more than {MAX_TENSORS}")
    if n_kv > MAX_KV:
        raise c.bad(f"the number of metadata entries is {n_kv}, more than {MAX_KV}")
    return version, n_tensors, n_kv


_LEAST = 24  # bytes of the magic, the version and two counts, with which every file begins

_FOREIGN = (
    (rb"version https://git-lfs", "it is a git-lfs pointer, not the model", "fetch the model itself with `git lfs pull`"),
    (rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|\?xml)", "it is a web page, not the model",
     "download the file itself; the address of a file on the hub has /resolve/, not /blob/"),
)  # fmt: skip
"""Beginnings of files that are often stored under a model's name, what they are, and what to do."""


def _no_gguf(c: Cursor, head: bytes) -> ModelInvalid:
    for begins, what, hint in _FOREIGN:
        if re.match(begins, head, re.DOTALL | re.IGNORECASE):
            return c.bad(f"not a GGUF v2/v3 file: {what}", hint)
    if c.size < _LEAST:
        hint = RESUME if c.size else "it is empty"
        return c.bad(f"not a GGUF v2/v3 file: it has only {c.size} bytes", hint)
    return c.bad(f"not a GGUF v2/v3 file: it begins with {head[:4]!r}")


def _metadata(c: Cursor, n_kv: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for i in range(n_kv):
        key = c.string(f"metadata key {i}").decode("utf-8", "backslashreplace")
        if not key or key in metadata:
            raise c.bad(f"metadata key {i} is a duplicate: {show(key)}" if key else
                        f"metadata key {i} is empty")  # fmt: skip
        metadata[key] = _value(c, show(key), c.scalar(_U32, f"the type of {show(key)}"))
    return metadata


def _value(c: Cursor, what: str, kind: int) -> Value:
    if kind in SCALARS:
        number: int | float | bool = c.scalar(SCALARS[kind], what)
        return number
    if kind == STRING:
        return c.string(what).decode("utf-8", "backslashreplace")
    if kind == ARRAY:
        return _skip_array(c, what)
    raise c.bad(f"{what} has the unknown type {kind}")


def _skip_array(c: Cursor, what: str) -> Array:
    kind: int = c.scalar(_U32, f"the element type of {what}")
    count: int = c.scalar(_U64, f"the length of {what}")
    start = c.pos
    if kind == STRING:
        c.strings(count, what, keep=False)
    elif kind in SCALARS:
        c.skip(count * SCALARS[kind].size, what)
    else:
        raise c.bad(f"{what} is an array of the unknown or nested type {kind}")
    return Array(kind, count, start)


def _alignment(c: Cursor, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is int and 0 < value <= MAX_ALIGNMENT and value & (value - 1) == 0:
        return value
    raise c.bad(f"general.alignment is {repr(value)[:80]}, not a power of two up to 4096")


def _tensor_info(c: Cursor, i: int) -> Tensor:
    """Read an entry of the tensor table. Its offset is still relative to the start of the data."""
    raw = c.string(f"the name of tensor {i}")
    if len(raw) > MAX_NAME:
        raise c.bad(f"the name of tensor {i} has {len(raw)} bytes, more than {MAX_NAME}")
    name = raw.decode("utf-8", "backslashreplace")
    what = f"tensor {show(name)}"
    n_dims = c.scalar(_U32, f"the dimensions of {what}")
    if n_dims > MAX_DIMS:
        raise c.bad(f"{what} has {n_dims} dimensions, more than {MAX_DIMS}")
    shape = tuple(c.scalar(_U64, f"the shape of {what}") for _ in range(n_dims))
    kind = c.scalar(_U32, f"the type of {what}")
    offset = c.scalar(_U64, f"the offset of {what}")
    if kind not in GGML_TYPES:
        raise c.bad(f"{what} has the unknown type {kind}", "llama.cpp may be too old for this file")
    return Tensor(name, GGML_TYPES[kind].name, shape, offset, _nbytes(c, what, shape, kind))


def _nbytes(c: Cursor, what: str, shape: tuple[int, ...], kind: int) -> int:
    """Return the bytes of a tensor. Python's integers do not wrap; the caps are llama.cpp's."""
    elements = 1
    for n in shape:
        if n > INT64_MAX:
            raise c.bad(f"{what} has a dimension of {n}")
        elements *= n
    block = GGML_TYPES[kind]
    row = shape[0] if shape else 1
    if row % block.elements:
        raise c.bad(f"{what} has rows of {row}, no multiple of {block.name}'s {block.elements}")
    nbytes = elements // block.elements * block.bytes
    if max(elements, nbytes) > INT64_MAX:
        raise c.bad(f"{what} has a shape whose size overflows")
    return nbytes


def _place(c: Cursor, infos: list[Tensor], data: int, alignment: int) -> tuple[Tensor, ...]:
    """Make offsets absolute; refuse duplicates, bad alignment, overlaps and short files."""
    seen: set[str] = set()
    for t in infos:
        if t.name in seen:
            raise c.bad(f"two tensors have the name {show(t.name)}")
        seen.add(t.name)
        if t.offset % alignment:
            raise c.bad(f"tensor {show(t.name)} is not aligned to {alignment} bytes")
    end, last = 0, ""
    for t in sorted(infos, key=lambda t: (t.offset, t.nbytes)):
        if t.offset < end:
            raise c.bad(f"the tensors {show(last)} and {show(t.name)} overlap")
        end, last = t.offset + t.nbytes, t.name
        if data + end > c.size:
            raise c.bad(f"the file ends before tensor {show(t.name)} is complete", RESUME)
    return tuple(Tensor(t.name, t.type, t.shape, data + t.offset, t.nbytes) for t in infos)
