"""Reading of untrusted files: only regular ones, a window at a time, every length checked first."""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING, Any

from pyspec.errors import ModelInvalid, ModelNotFound, ModelUnreadable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RESUME", "U64", "Cursor", "open_regular", "show"]

MAX_STRING = 1 << 20
MAX_HEADER = 64 << 20
U64 = struct.Struct("<Q")
RESUME = "fetch it again with `pyspec models pull`, or copy it again"
_WINDOW = 1 << 20


def show(text: str | bytes, limit: int = 80) -> str:
    """`text` quoted with control characters and bad bytes escaped, cut at `limit`."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= limit else text[:limit] + "...")


def open_regular(path: Path) -> tuple[int, int]:
    """Opens a regular file for reading; returns descriptor and size.

    Raises ModelNotFound or ModelUnreadable. The kind is looked at before the file is opened, since
    opening a FIFO waits for a writer and opening a device may act on it.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        fd = os.open(path, flags) if regular else -1
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ModelNotFound(f"there is no file {show(str(path), 300)}") from error
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise ModelUnreadable(f"cannot read {show(str(path), 300)}: {reason}") from error
    if not regular:
        raise ModelUnreadable(f"{show(str(path), 300)} is not a regular file")
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):  # replaced between stat and open
        os.close(fd)
        raise ModelUnreadable(f"{show(str(path), 300)} is not a regular file")
    return fd, status.st_size


class Cursor:
    """A position in the header; every read is held against file size and header cap first.

    Only a window of the file is in memory, so a hostile header costs no more than a good one.
    """

    def __init__(self, fd: int, size: int, name: str) -> None:
        self.fd, self.size, self.name = fd, size, name
        self.buf = b""
        self.base = 0  # offset in the file of the window's first byte
        self.pos = 0

    def bad(self, what: str, hint: str = "") -> ModelInvalid:
        """The error that says `what` is wrong with this file."""
        return ModelInvalid(f"{show(self.name)}: {what}", hint)

    def bound(self, n: int, what: str) -> int:
        """The position `n` bytes on, if file and cap allow it."""
        end = self.pos + n
        if end > self.size:
            raise self.bad(f"{what} reaches past the end of the file", RESUME)
        if end > MAX_HEADER:
            raise self.bad(f"{what} makes the header larger than {MAX_HEADER >> 20} MiB")
        return end

    def need(self, n: int, what: str) -> int:
        """Makes `n` bytes available in the window; returns the index of the first."""
        end = self.bound(n, what)
        if end > self.base + len(self.buf):
            self.buf, self.base = self._read(max(n, _WINDOW)), self.pos
            if len(self.buf) < n:
                raise self.bad(f"the file shrank while {what} was read", RESUME)
        return self.pos - self.base

    def _read(self, want: int) -> bytes:
        chunks: list[bytes] = []
        try:
            os.lseek(self.fd, self.pos, os.SEEK_SET)
            while want > 0 and (chunk := os.read(self.fd, want)):
                chunks.append(chunk)
                want -= len(chunk)
        except OSError as error:
            raise ModelUnreadable(f"cannot read {show(self.name)}: {error.strerror}") from error
        return b"".join(chunks)

    def take(self, n: int, what: str) -> bytes:
        """The next `n` bytes."""
        start = self.need(n, what)
        self.pos += n
        return self.buf[start : start + n]

    def skip(self, n: int, what: str) -> None:
        """Passes over `n` bytes without reading them."""
        self.pos = self.bound(n, what)

    def scalar(self, kind: struct.Struct, what: str) -> Any:
        """The next number."""
        at = self.need(kind.size, what)  # may replace the window, so it comes first
        (value,) = kind.unpack_from(self.buf, at)
        self.pos += kind.size
        return value

    def string(self, what: str) -> bytes:
        """The next string of at most 1 MiB."""
        n = self.scalar(U64, f"the length of {what}")
        if n > MAX_STRING:
            raise self.bad(f"{what} claims {n} bytes, more than {MAX_STRING >> 20} MiB")
        return self.take(n, what)

    def strings(self, count: int, what: str, keep: bool) -> list[bytes]:
        """Walks over `count` strings; a tight loop, since vocabularies have 256k of them."""
        if 8 * count > self.size - self.pos:
            raise self.bad(f"{what} claims {count} strings, more than the file can hold", RESUME)
        if 8 * count > MAX_HEADER - self.pos:
            raise self.bad(f"{what} claims {count} strings, more than {MAX_HEADER >> 20} MiB hold")
        out: list[bytes] = []
        unpack, at = U64.unpack_from, self.need(0, what)
        buf, have = self.buf, len(self.buf)
        for _ in range(count):
            if at + 8 > have:
                buf, at, have = self._slide(at, 8, what)
            (n,) = unpack(buf, at)
            at += 8
            if n > MAX_STRING:
                raise self.bad(f"a string of {what} claims {n} bytes")
            if at + n > have:
                buf, at, have = self._slide(at, n, what)
            if keep:
                out.append(buf[at : at + n])
            at += n
        self.pos = self.base + at
        return out

    def _slide(self, at: int, n: int, what: str) -> tuple[bytes, int, int]:
        """Moves the window to its index `at`; returns window, new index and length."""
        self.pos = self.base + at
        at = self.need(n, what)
        return self.buf, at, len(self.buf)
