"""Files: text of somebody else read with the place of what is wrong, and files written in one move.

Readers of a file that is written see the old one or the new one, never a part, also after a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspec.errors import InputEncoding

if TYPE_CHECKING:
    from collections.abc import Iterable


def utf8(data: bytes, name: str) -> str:
    """Bytes of `name` as text, without BOM and CR at line ends. Raises InputEncoding, which says where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputEncoding(
            f"{name} is not UTF-8 at byte {error.start}, line {line}", "convert it first"
        ) from None


def write_whole(path: Path, chunks: Iterable[bytes], *, replace: bool = True) -> None:
    """Write a temporary sibling, which takes the name when it is complete and on the disk.

    Raises OSError, as for a name that is a device's or a pipe's, which stays; with replace False FileExistsError where the
    name is taken, whoever took it when.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            for chunk in chunks:
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        _take_name(Path(temporary), path, replace=replace)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    _sync_folder(path.parent)


def _take_name(temporary: Path, path: Path, *, replace: bool) -> None:
    if not replace:
        try:
            os.link(temporary, path)  # fails where the name is taken; a rename would not
        except FileExistsError:
            raise
        except OSError:  # no links on this file system: look, then move
            if os.path.lexists(path):
                raise FileExistsError(17, "File exists", str(path)) from None
        else:
            temporary.unlink()
            return
    temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    """Put the new name on the disk, too."""
    with contextlib.suppress(OSError):  # not every system opens folders
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
