"""Converts a known model to another tensor type with llama.cpp's quantiser, into the cache.

The result is `NAME-TYPE.gguf` with a record `NAME-TYPE.json` beside it. Without that record, or
when the record belongs to other weights, the file counts as absent and is made again.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import msgspec

from pyspec.atomic import write_whole
from pyspec.errors import FetchError, ModelError
from pyspec.store.child import run_child
from pyspec.store.fetch import Progress, fetch, no_progress, require_space, workspace
from pyspec.store.fingerprint import file_sha256
from pyspec.store.header import read_header
from pyspec.store.paths import models_dir

if TYPE_CHECKING:
    from pathlib import Path

    from pyspec.store.manifest import Entry

__all__ = [
    "CONVERSIONS",
    "ORIGINAL",
    "Provenance",
    "convert",
    "converted",
    "read_provenance",
    "variant_path",
]

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
    ftype = CONVERSIONS[kind]
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
        _quantize(source, new, ftype, f"converting {entry.name} to {kind}", progress)
        note = _note(entry, kind, read_header(new).tensor_types())
        record = Provenance(
            entry.name, file_sha256(source), kind, file_sha256(new), new.stat().st_size, note
        )
        # The record goes last: a crash in between leaves a file that counts as absent.
        new.replace(target)
        write_whole(target.with_suffix(".json"), [msgspec.json.encode(record)])
    return target


def _quantize(source: Path, out: Path, ftype: int, what: str, progress: Progress) -> None:
    def on_line(line: str) -> None:
        words = line.split()
        if len(words) == 3 and words[0] == "tensor":
            progress(what, int(words[1]), int(words[2]))

    progress(what, 0, 0)
    threads = str(os.cpu_count() or 1)
    arguments = [str(source), str(out), str(ftype), threads]
    outcome = run_child("_quantize.py", arguments, on_line=on_line)
    if not outcome.ok:
        raise FetchError(f"{what} failed: {outcome.reason[:300]}")


def _note(entry: Entry, kind: str, types: dict[str, int]) -> str:
    made = ", ".join(f"{n} {name}" for name, n in types.items())
    return (
        f"requantised from {entry.file} to {kind} by llama.cpp ({made}); "
        "the weights are rounded once more, so answers can differ a little from the original's"
    )
