"""Finds the tensor type of a known model that decodes fastest on this machine."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspec.store.check import Loading, extra_buffers
from pyspec.store.devices import count_layers, layer_devices, rough_layers, rpc_servers
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
from pyspec.store.header import read_header
from pyspec.store.isolate import run_child
from pyspec.store.machine import default_threads, this_machine
from pyspec.store.sources import Entry
from pyspec.store.timed import how, keep_times
from pyspec.store.watch import Watch, is_quiet
from pyspec.store.words import AUTO

_BEST = "fastest type of "
_TIMING_S = 60.0
_DEVICE_S = 900.0  # a first load compiles shaders or PTX for the card


class Devices(NamedTuple):
    """Where a model will be placed. layers: as given by the user. described: the devices' own descriptions."""

    layers: int | str
    devices: tuple[str, ...]
    described: str

    @property
    def words(self) -> str:
        """The part of a cache key for this place."""
        return f", {self.layers} layers on {self.described}"


def place_of(layers: int | str, names: Sequence[str]) -> Devices | None:
    """Return the place of a model loaded with these `n_gpu_layers` and devices; None for the CPU."""
    found = layer_devices(names) if layers else []
    described = " + ".join(each.description for each in found)
    return Devices(layers, tuple(names), described) if found else None


def fetch_best(
    entry: Entry,
    progress: Progress = no_progress,
    layers: int | str = 0,
    devices: Sequence[str] = (),
) -> Path:
    """Return the entry's file in the type that the manifest lists; of several, the one that decodes fastest in its place.

    This is measured once for each build, processor and place, and again later if other programs used the machine meanwhile.
    Files made only for the measurement are removed. A read-only cache is used as it is. layers, devices: as in `resolve`.
    Raises FetchError.
    """
    kinds = entry.convert
    if not kinds:
        return fetch(entry, progress)
    if len(kinds) == 1:
        return convert(entry, kinds[0], progress)
    place = place_of(layers, devices)
    best = _known_best(entry, place)
    for kind in (best,) if os.access(models_dir(), os.W_OK) else (best, *kinds):
        if kind in kinds and (path := converted(entry, kind)) is not None:
            return path
    lock = make_dir(models_dir()) / f".{entry.name}.lock"
    with file_lock(lock, partial(progress, *WAITING)):
        best = _known_best(entry, place)
        if best not in kinds:
            watch = Watch()
            best = _find_best(entry, place, progress)
            doubt = _DOUBT if watch.busy(default_threads()) else ""
            remember(_fact(entry, place), this_machine(), best + doubt)
        return convert(entry, best, progress)


_DOUBT = ", on a busy machine"


def _fact(entry: Entry, place: Devices | None) -> str:
    return _BEST + entry.name + (place.words if place else "")


def _known_best(entry: Entry, place: Devices | None) -> str:
    """Return the type found before; empty if the machine was busy then and is quiet now."""
    found = recall(_fact(entry, place), this_machine()) or ""
    doubted = found.endswith(_DOUBT)
    return "" if doubted and is_quiet() else found.removesuffix(_DOUBT)


def _find_best(entry: Entry, place: Devices | None, progress: Progress) -> str:
    """Return the type with the least geometric mean of decode times over widths; the first one if there are no times."""
    there = {kind for kind in entry.convert if converted(entry, kind) is not None}
    files = {kind: convert(entry, kind, progress) for kind in entry.convert}
    watch, times = Watch(), dict[str, dict[int, float]]()
    for done, (kind, path) in enumerate(files.items()):
        progress(f"timing {entry.name} as {kind}", done, len(files))
        times[kind] = _times(path, place)
    scores = {kind: sum(map(math.log, ms.values() or [math.inf])) for kind, ms in times.items()}
    best = min(files, key=lambda kind: scores[kind])
    if not watch.busy(default_threads()):  # 64 rows have logits for one: no verify
        kept = {n: ms for n, ms in times[best].items() if n <= 8}
        keep_times(files[best], how(default_threads(), _where(files[best], place)), kept)
    drop_conversions(entry, files.keys() - there - {best})
    return best


def _layers(path: Path, place: Devices) -> int:
    """Return how many layers of a file go to devices; for `auto` estimated from sizes."""
    header = read_header(path)
    if place.layers == AUTO:
        return rough_layers(header, layer_devices(place.devices))
    layers, most = int(place.layers), count_layers(header)
    return layers if 0 <= layers < most else most


def _where(path: Path, place: Devices | None) -> str:
    """Describe the placement as `pyspec.engine.profiles` does for a loaded model."""
    layers = _layers(path, place) if place else 0
    return f"{layers} layers on {place.described}" if place and layers else ""


def _times(path: Path, place: Devices | None = None) -> dict[int, float]:
    """Return milliseconds of decodes in this place by number of rows; empty if they could not be measured."""
    loading = Loading(n_threads=default_threads())
    if place is not None:
        loading = replace(loading, n_gpu_layers=_layers(path, place), devices=place.devices)
    wanted = {**vars(loading), "extra_buffers": extra_buffers(), "servers": rpc_servers()}
    found: dict[int, float] = {}

    def on_line(line: str) -> None:
        words = line.split()
        if len(words) == 3 and words[0] == "rows":
            found[int(words[1])] = float(words[2])

    outcome = run_child(
        "time", [str(path), json.dumps(wanted)], on_line=on_line,
        timeout=_DEVICE_S if place else _TIMING_S, gpu=place is not None,
    )  # fmt: skip
    return found if outcome.ok else {}
