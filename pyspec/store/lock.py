"""A lock between processes, so that two of them never fetch or convert one model at once."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspec.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["file_lock"]

_POLL_SECONDS = 0.1

if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds an exclusive lock on `path`, which is created and left in place.

    The lock dies with the process that holds it. While another holds it, `on_wait` is called once
    and the lock is polled, so Ctrl-C works. Raises FetchError when the file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        raise FetchError(f"cannot write to the cache at {path}: {error.strerror}") from error
    try:
        waited = False
        while not _try_lock(fd):
            if not waited and on_wait is not None:
                on_wait()
            waited = True
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(fd)  # releases the lock
