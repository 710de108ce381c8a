"""Of the types that a known model may be converted to, the one that decodes fastest on this machine."""

from __future__ import annotations

import json
import math
import os
from functools import partial
from pathlib import Path

from pyspec.store.check import Loading, extra_buffers, run_child
from pyspec.store.fetch import (
    WAITING,
    Progress,
    convert,
    converted,
    drop_conversions,
    fetch,
    no_progress,
)
from pyspec.store.files import file_lock, make_dir, models_dir, recall, remember
from pyspec.store.machine import default_threads, this_machine
from pyspec.store.sources import Entry
from pyspec.store.timed import how, keep_times
from pyspec.store.watch import Watch, is_quiet

_BEST = "fastest type of "
_TIMING_S = 60.0


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
    with file_lock(lock, partial(progress, *WAITING)):
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
