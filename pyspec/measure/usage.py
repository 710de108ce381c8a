"""What a run takes of the machine, and plain llama.cpp, with which it is compared."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp

# -- other programs' processor time; known on Linux alone -----------------------------------------------


BOUND = 0.05
"""Processor seconds of others in a second: an answer timed beside more than this is timed again."""

_SHORT_S = 0.1  # ticks are too coarse for less
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Watch:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._start, self._all, self._own = perf_counter(), _all_s(), _own_s()

    def others(self) -> float:
        """Processor seconds a second that programs other than this one and its children took since."""
        passed = perf_counter() - self._start
        if passed < _SHORT_S:
            return 0.0
        taken = (_all_s() - self._all) - (_own_s() - self._own)
        return max(0.0, taken - 2.0 / _TICKS) / passed  # each count is rounded to a tick


def _all_s() -> float:
    """Seconds that all processors have worked."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, hard, soft = map(int, fields)
    return (user + nice + system + hard + soft) / _TICKS


def _own_s() -> float:
    """Seconds that this process and its living children have worked."""
    own, out = os.getpid(), 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if own in (int(path.parent.name), int(fields[1])):
            out += (int(fields[11]) + int(fields[12])) / _TICKS
    return out


# -- memory ------------------------------------------------------------------------------------------------------------


def resident_peak() -> float:
    """Of this process, since its start, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage counts what the parent held at the fork, which may be more than this process ever has
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    import resource  # noqa: PLC0415 - not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def resident_now(process: int | str = "self") -> float:
    """Of a process by its id, or of this one, in MiB; known on Linux alone."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class PlainLlama(llama_cpp.Llama):  # type: ignore[misc]  # llama_cpp is untyped
    """What comparisons are made with: nothing of ours but the extra buffers, for which `llama_cpp.Llama` has no argument.

    extra_buffers: whether weights may go to layouts of llama.cpp's own; `pyspec.store.check.extra_buffers()` knows.
    """

    def __init__(self, model_path: str, *, extra_buffers: bool, **kwargs: Any) -> None:
        self._may_use_extra = extra_buffers
        super().__init__(model_path, **kwargs)

    @property
    def model_params(self) -> Any:
        """What the model is loaded with."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        params.use_extra_bufts = self._may_use_extra
        self._model_params = params
