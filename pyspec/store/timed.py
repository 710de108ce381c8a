"""Keeps decode times of model files on this machine for later processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyspec.errors import PyspecError
from pyspec.store.files import (
    Record,
    cache_dir,
    parse,
    read_json,
    recall_as,
    remember_json,
    stamp,
    written,
)
from pyspec.store.machine import engine_build, processor

MAX_CHANGE = 3.0
"""If one-row decodes take this many times the kept time, the machine was busy with something else."""


def how(threads: int, where: str = "") -> str:
    """Describe what times depend on besides file, processor and build. where: devices that hold layers."""
    return f"{threads} threads{where and f', {where}'}"


def kept_times(path: Path, run: str) -> dict[int, float]:
    """Return milliseconds of a decode by number of rows, without earlier context; empty if unknown."""
    with suppress(PyspecError):
        times = recall_as(_kind(run), stamp(path), dict[int, float]) or {}
        if all(rows > 0 and 0.0 < ms < 1e7 for rows, ms in times.items()):
            return times
    return {}


def keep_times(path: Path, run: str, times: Mapping[int, float]) -> bool:
    """Keep times for later processes, and return whether they were accepted.

    They are refused without a time for one row, or if that is over `MAX_CHANGE` times the kept one: a machine may be slow for
    a while, but none is fast by chance.
    """
    before = kept_times(path, run)
    if 1 not in times or (1 in before and times[1] > MAX_CHANGE * before[1]):
        return False
    with suppress(PyspecError):
        rounded = {rows: round(ms, 4) for rows, ms in sorted(times.items())}
        remember_json(_kind(run), stamp(path), rounded)
    return True


def forget_times(path: Path) -> None:
    """Delete the kept times of a file for all ways of running it."""
    name = written(os.path.realpath(path))
    for record in (cache_dir() / "facts").glob("*.json"):
        known = read_json(record, Record)
        if known is not None and known.stamp.realpath == name:
            with suppress(OSError, ValueError):
                parse(known.fact, dict[int, float])  # no other fact has numbers as names
                record.unlink()


def _kind(run: str) -> str:
    return f"times of rows, {run}, {processor()}, {engine_build()}"
