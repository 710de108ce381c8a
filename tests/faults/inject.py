"""Faults put under the extension while Python runs it: calls of llama.cpp through its table, and its allocations.

Each fails once, at the k-th call, or from there on, as SQLite's tests do it.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp

import pyspec._native
from pyspec._lib import check, ffi, lib
from pyspec.engine.handle import Role

ERRORS = (1, -1, -3)
"""Of a decode: no room in the KV, a bad batch, and a computation that failed; 2 is a cancel."""


class Fault:
    """Counts calls; the `at`-th is bad, with those after it if the fault is to last; 0 for none."""

    _at = 0

    def arm(self, at: int, lasts: bool = False) -> None:
        self._at, self._lasts = at, lasts
        self._seen = self.failed = 0

    def disarm(self) -> None:
        """No call is bad from here on; `failed` says how many were."""
        self._at = 0

    def each(self, lasts: bool = False, step: int = 1) -> Iterator[int]:
        """Places of the first bad call, further on turn by turn, until a turn had none."""
        at, self.failed = 0, 1
        while self.failed:
            at += step
            self.arm(at, lasts)
            yield at

    def _bad(self) -> bool:
        self._seen += 1
        bad = bool(self._at) and (self._seen == self._at or (self._lasts and self._seen > self._at))
        self.failed += bad
        return bad


class _Call(Fault):
    """A function of llama.cpp's in the extension's table, with ours before it."""

    def __init__(self, name: str, kind: Any) -> None:
        names = (lib.ps_api_name(i) for i in range(999))
        self._index = next(i for i, found in enumerate(names) if ffi.string(found) == name.encode())
        original = getattr(llama_cpp.llama_cpp._lib, name)
        self._call = kind(ctypes.cast(original, ctypes.c_void_p).value)
        self._mine = kind(self._answer)  # kept as long as the extension may call it
        self.arm(0)
        self._bind(self._mine)

    def _answer(self, *arguments: Any) -> int:
        raise NotImplementedError

    def restore(self) -> None:
        """llama.cpp's own again."""
        self._bind(self._call)

    def _bind(self, function: Any) -> None:
        address = ctypes.cast(function, ctypes.c_void_p).value
        check(lib.ps_api_bind(self._index, ffi.cast("void *", address)))


class Decodes(_Call):
    """`llama_decode`: it gives an error instead of decoding; only for the contexts of one role."""

    def __init__(self) -> None:
        self.contexts: dict[int, Role] = {}
        self.role = Role.TARGET
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, llama_cpp.llama_batch)
        super().__init__("llama_decode", kind)

    def _answer(self, context: int, batch: Any) -> int:
        if self.contexts.get(context, Role.TARGET) is self.role and self._bad():
            return ERRORS[self._at % 3]
        return int(self._call(context, batch))


class Ends(_Call):
    """`llama_vocab_is_eog`: any token may be the end of generation."""

    def __init__(self) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int32)
        super().__init__("llama_vocab_is_eog", kind)

    def _answer(self, vocab: int, token: int) -> int:
        return self._bad() or self._call(vocab, token)


_KINDS = {
    "malloc": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t),
    "calloc": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t),
    "realloc": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
}


class Allocations(Fault):
    """The extension's malloc, calloc and realloc, and nobody else's: they give NULL."""

    def __init__(self) -> None:
        self.arm(0)
        self._before: list[tuple[int, int]] = []
        self._mine = []  # kept as long as the extension may call them
        libc = ctypes.CDLL(None)
        for name, slot in _imported(Path(pyspec._native.__file__)):
            if name in _KINDS:
                kind = _KINDS[name]
                real = kind(ctypes.cast(getattr(libc, name), ctypes.c_void_p).value)
                self._mine.append(kind(self._refusing(real)))
                self._before.append((slot, _write(slot, self._mine[-1])))
        assert {name for name, _ in _imported(Path(pyspec._native.__file__))} >= set(_KINDS)

    def _refusing(self, real: Any) -> Any:
        return lambda *arguments: None if self._bad() else real(*arguments)

    def restore(self) -> None:
        """The C library's own again."""
        for slot, address in self._before:
            ctypes.c_void_p.from_address(slot).value = address


def _write(slot: int, function: Any) -> int:
    """Put a function's address into a slot; returns what was there."""
    page = slot & -mmap.PAGESIZE
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    place = ctypes.c_void_p.from_address(slot)
    before, place.value = place.value, ctypes.cast(function, ctypes.c_void_p).value
    return before or 0


def _imported(path: Path) -> Iterator[tuple[str, int]]:
    """Names that a loaded shared object of 64 bits takes from others, and the address of the pointer to each."""
    raw = path.read_bytes()
    maps = Path("/proc/self/maps").read_text().splitlines()
    base = next(int(line.partition("-")[0], 16) for line in maps if line.endswith(str(path)))
    at, size, n = struct.unpack_from("<Q", raw, 40)[0], *struct.unpack_from("<HH", raw, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", raw, at + i * size) for i in range(n)]
    relocations, symbols = 4, 11
    names = next(s for s in sections if s[1] == symbols)
    strings = sections[names[6]][4]
    for section in sections:
        if section[1] != relocations:
            continue
        for entry in range(section[4], section[4] + section[5], 24):
            slot, info, _ = struct.unpack_from("<QQq", raw, entry)
            if symbol := info >> 32:
                (name,) = struct.unpack_from("<I", raw, names[4] + 24 * symbol)
                text = raw[strings + name : raw.index(b"\0", strings + name)]
                yield text.decode(), base + slot
