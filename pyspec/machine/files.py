"""Files and the cache: safe opening, atomic writes, locks, JSON of ours, and cached facts about files.

A reader sees the old or the new content of a file, never a part, even after a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from pyspec.errors import (
    FetchError,
    InputEncoding,
    InputError,
    InputTooLong,
    ModelNotFound,
    ModelUnreadable,
    OptionError,
)

log = logging.getLogger("pyspec")

T = TypeVar("T")
_A_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
MAX_PARTS = 1024


def utf8(data: bytes, name: str) -> str:
    """Decode the bytes of `name`, without BOM and CR at line ends. Raises InputEncoding, which gives the position."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"{name} is not UTF-8 at byte {error.start}, line {line}"
        raise InputEncoding(what, "convert it first") from None


def show(text: str | bytes, limit: int = 80) -> str:
    """Quote `text`, with control characters and bad bytes escaped, cut at `limit`."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= limit else text[:limit] + "...")


def open_regular(path: Path) -> BinaryIO:
    """Open a model's file for reading, as `open_named` does. Raises ModelNotFound or ModelUnreadable."""
    name = show(str(path), 300)
    try:
        return open_named(path)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ModelNotFound(f"there is no file {name}") from error
    except OSError as error:
        if error.errno == errno.EINVAL and path.is_dir():
            raise ModelUnreadable(f"{name} is a folder", "name a GGUF file in it") from error
        reason = error.strerror or "unknown reason"
        raise ModelUnreadable(f"cannot read {name}: {reason}") from error


def open_named(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, also for another kind of file.

    The kind is checked before the file is opened, since opening a FIFO waits for a writer, and opening a device may act on it.
    """
    if stat.S_ISREG(path.stat().st_mode):
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()  # replaced between stat and open
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_named(path: Path, most: int) -> bytes:
    """Return the content of a file that a user named. Raises OSError as `open_named` does, and for more than `most` bytes."""
    with open_named(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, most) + 1)  # Python takes as much memory as is asked for
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", str(path))
    return data


def read_text(path: Path, most: int = 16 << 20) -> str:
    """Return the text of a file that a user named. Raises InputError, InputTooLong above `most` bytes, or InputEncoding."""
    try:
        return utf8(read_named(path, most), str(path))
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        reason = getattr(error, "strerror", None) or error
        kind = (
            InputTooLong
            if isinstance(error, OSError) and error.errno == errno.EFBIG
            else InputError
        )
        raise kind(f"{path} cannot be read: {reason}", "name a readable text file") from None


def read_stream(stream: BinaryIO, most: int, name: str) -> str:
    """Return the text of a stream. Raises InputTooLong for more than `most` bytes, or InputEncoding."""
    data = stream.read(most + 1)
    if len(data) > most:
        raise InputTooLong(f"{name} is larger than {most} bytes", "shorten it")
    return utf8(data, name)


def first_part(path: Path) -> Path:
    """Return the first file of a model by the name of any of them (NAME-00002-of-00003.gguf); the path itself if it is whole."""
    match = _A_PART.fullmatch(path.name)
    if match is None or not 1 < int(match[2]) <= int(match[3]) <= MAX_PARTS:
        return path
    return path.with_name(f"{match[1]}-00001-of-{match[3]}.gguf")


def parts_of(path: Path) -> list[Path]:
    """Return the files of a model by the name of the first (NAME-00001-of-00003.gguf), in order, whether they exist or not."""
    match = _A_PART.fullmatch(path.name)
    if match is None or int(match[2]) != 1 or int(match[3]) > MAX_PARTS:
        return [path]
    return [
        path.with_name(f"{match[1]}-{i + 1:05d}-of-{match[3]}.gguf") for i in range(int(match[3]))
    ]


def size_of(path: Path) -> int:
    """Return the bytes of a model's file, or of all existing parts. Raises OSError if the file does not exist."""
    first, *others = parts_of(path)
    return first.stat().st_size + sum(part.stat().st_size for part in others if part.is_file())


def expanded(path: str) -> Path:
    """Return a path with the user's folder in place of ~; one of an unknown ~user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's raises for a ~user that does not exist


# -- atomic writes -----------------------------------------------------------------------------------------------------


def write_whole(path: Path, chunks: Iterable[bytes], *, replace: bool = True) -> None:
    """Write a temporary file in the same folder, and rename it once it is complete and on the disk.

    Raises OSError, also for an invalid name, or one of a device or pipe, which is left alone. With replace False, raises
    FileExistsError if the name is taken, even if it was taken meanwhile.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a NUL byte", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    import tempfile  # noqa: PLC0415 - it and hashlib take 5 ms, and a question to a server needs neither

    prefix = f".{path.name[:32]}."  # all of a long name would be too long with what follows
    handle, temporary = tempfile.mkstemp(prefix=prefix, dir=path.parent)
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
            os.link(temporary, path)  # fails if the name is taken; a rename would not
        except FileExistsError:
            raise
        except OSError:  # no links on this file system: check, then rename
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, "the name is taken", str(path)) from None
        else:
            temporary.unlink()
            return
    temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    """Sync the new name to the disk too."""
    with contextlib.suppress(OSError):  # not every system can open folders
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# -- the cache ---------------------------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """Return pyspec's cache folder; PYSPEC_CACHE overrides the platform's convention. Does not create it."""
    override = os.environ.get("PYSPEC_CACHE")
    if override:
        return expanded(override).absolute()
    import platformdirs  # noqa: PLC0415 - as above

    return platformdirs.user_cache_path("pyspec", appauthor=False)


def models_dir() -> Path:
    """Return the cache's folder of fetched and converted models. Does not create it."""
    return cache_dir() / "models"


def make_dir(path: Path) -> Path:
    """Create a folder of the cache and return it. Raises FetchError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot create the cache folder {path}: {error.strerror}"
        raise FetchError(what, "set PYSPEC_CACHE to a writable folder") from error
    return path


# -- locks -------------------------------------------------------------------------------------------------------------


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which ends with the process.

    While another process holds it, `on_wait` is called once, and the lock is polled so that Ctrl-C works. Raises FetchError
    if the file cannot be opened.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - takes 5 ms, and many commands lock nothing

    lock = FileLock(path, mode=0o600)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if on_wait is not None:
                on_wait()
            lock.acquire(poll_interval=0.1)
    except OSError as error:
        raise FetchError(f"cannot write to the cache at {path}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


# -- JSON of ours ------------------------------------------------------------------------------------------------------

MAX_JSON = 64 << 20  # most bytes of a file that `read_json` reads


def parse(data: bytes | str, kind: type[T]) -> T:
    """Decode JSON. Raises ValueError, whatever is wrong with it: encoding, syntax, types, depth or ranges."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OptionError) as error:
        raise ValueError(str(error)) from None


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return the content of a file that pyspec wrote; None if it is absent, or damaged, which is said once."""
    try:
        return parse(read_named(path, MAX_JSON), kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        tell_damage(path, getattr(error, "strerror", None) or str(error))
        return None


@cache
def tell_damage(path: Path, reason: str) -> None:
    """Say once in a process that a file counts as absent."""
    log.warning("%s is damaged (%s); it counts as absent", path, reason)


# -- facts of files ----------------------------------------------------------------------------------------------------


class Stamp(NamedTuple):
    """Identifies one state of a file."""

    realpath: str
    size: int
    mtime_ns: int
    inode: int


def stamp(path: Path) -> Stamp:
    """Return the stamp of a file. Raises ModelNotFound or ModelUnreadable."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
    return Stamp(os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino)


def stamps(path: Path) -> list[Stamp]:
    """Return the stamps of a file and of a split model's other existing parts. Raises as `stamp` does."""
    first, *others = parts_of(path)
    return [stamp(first), *(stamp(part) for part in others if part.is_file())]


def recall(kind: str, of: Stamp) -> str | None:
    """Return the fact remembered under `kind` for exactly this state of the file, or None."""
    record = read_json(_record(kind, of), Record)
    return record.fact if record is not None and record.stamp == _plain(of) else None


def recall_as(kind: str, of: Stamp, form: type[T]) -> T | None:
    """Return a fact of this form, or None; also for what another version kept in another form."""
    with contextlib.suppress(ValueError):
        fact = recall(kind, of)
        return None if fact is None else parse(fact, form)
    return None


def remember(kind: str, of: Stamp, fact: object) -> None:
    """Keep a text, or a fact that JSON can say; one of a later state of the file replaces it. Failures are ignored."""
    text = fact if isinstance(fact, str) else msgspec.json.encode(fact).decode()
    path, record = _record(kind, of), Record(_plain(of), text)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [msgspec.json.encode(record)])


class Record(msgspec.Struct):
    """A fact as kept."""

    stamp: Stamp
    fact: str


def as_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _plain(of: Stamp) -> Stamp:
    return of._replace(realpath=as_text(of.realpath))


def _record(kind: str, of: Stamp) -> Path:
    import hashlib  # noqa: PLC0415 - as above

    key = hashlib.sha256(f"{kind}\0{of.realpath}".encode("utf-8", "surrogateescape")).hexdigest()
    return cache_dir() / "facts" / f"{key[:32]}.json"


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return a file's sha256 in hex, from the cache if it has not changed. Raises ModelNotFound or ModelUnreadable."""
    path = Path(path)
    before = stamp(path)
    known = recall("sha256", before)
    if known is not None:
        return known
    digest = hash_of(path)
    if stamp(path) == before:  # else it changed while being read
        remember("sha256", before, digest)
    return digest


def hash_of(path: Path) -> str:
    """Read a file and return its sha256 in hex. Raises ModelNotFound or ModelUnreadable."""
    import hashlib  # noqa: PLC0415 - as above

    digest = hashlib.sha256()
    with open_regular(path) as file:
        try:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        except OSError as error:
            name = show(str(path), 300)
            raise ModelUnreadable(f"cannot read {name}: {error.strerror}") from error
    return digest.hexdigest()
