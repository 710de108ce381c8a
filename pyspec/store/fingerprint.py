"""Facts about a file that are dear to find out (its hash, that it loads), kept in the cache.

A fact holds for one state of one file: real path, size, modification time and inode. The cache is
only a short cut, so a folder that cannot be written to is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from pyspec.atomic import write_whole
from pyspec.errors import ModelUnreadable
from pyspec.store.cursor import open_regular, show
from pyspec.store.paths import cache_dir

__all__ = ["Stamp", "file_sha256", "known_sha256", "recall", "remember", "stamp"]

_CHUNK = 1 << 20


class Stamp(NamedTuple):
    """What tells one state of a file from another."""

    realpath: str
    size: int
    mtime_ns: int
    inode: int


def stamp(path: Path) -> Stamp:
    """The stamp of a file; raises ModelNotFound or ModelUnreadable."""
    fd, _ = open_regular(path)
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    return Stamp(os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino)


def recall(kind: str, of: Stamp) -> str | None:
    """The fact remembered under `kind` for exactly this state of the file, or None."""
    try:
        record = json.loads(_record(kind, of).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("stamp") != list(of):
        return None
    fact = record.get("fact")
    return fact if isinstance(fact, str) else None


def remember(kind: str, of: Stamp, fact: str) -> None:
    """Keeps a fact; a later state of the same file replaces it. Failures are ignored."""
    record = _record(kind, of)
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        write_whole(record, [json.dumps({"stamp": list(of), "fact": fact}).encode()])


def _record(kind: str, of: Stamp) -> Path:
    key = hashlib.sha256(f"{kind}\0{of.realpath}".encode("utf-8", "surrogateescape")).hexdigest()
    return cache_dir() / "facts" / f"{key[:32]}.json"


def file_sha256(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file in hex, from the cache when the file has not changed since.

    Raises ModelNotFound or ModelUnreadable.
    """
    path = Path(path)
    before = stamp(path)
    known = recall("sha256", before)
    if known is not None:
        return known
    digest = _hash(path)
    if stamp(path) == before:  # else it changed while it was read
        remember("sha256", before, digest)
    return digest


def known_sha256(path: Path) -> str:
    """The sha256 of a file if it was found out before, or the empty string."""
    return recall("sha256", stamp(path)) or ""


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    fd, _ = open_regular(path)
    try:
        while chunk := os.read(fd, _CHUNK):
            digest.update(chunk)
    except OSError as error:
        raise ModelUnreadable(f"cannot read {show(str(path), 300)}: {error.strerror}") from error
    finally:
        os.close(fd)
    return digest.hexdigest()
