"""Facts about this machine and its llama.cpp: the processor, its threads, the build, and what other programs need."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import resource
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata, util
from itertools import takewhile
from pathlib import Path
from time import perf_counter, process_time

import psutil

from pyspec.machine.files import Stamp


@cache
def processor() -> str:
    """Return the processor's name as the system gives it."""
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    if sys.platform == "darwin" and (name := _sysctl("machdep.cpu.brand_string")):
        return name
    return platform.processor() or platform.machine()


@cache
def has_amx() -> bool:
    """Whether the processor reports tile multiplication (AMX)."""
    flags = next((line for line in _cpuinfo() if line.startswith("flags")), "")
    return {"amx_tile", "amx_int8"} <= set(flags.split())


@cache
def _cpuinfo() -> tuple[str, ...]:
    """Return the system's description of the first core."""
    return tuple(takewhile(str.strip, _lines(Path("/proc/cpuinfo"))))


@cache
def engine_build() -> str:
    """Identify the installed llama-cpp-python and its build: another compiler makes other files."""
    version = metadata.version("llama_cpp_python")
    digest = hashlib.sha256()
    spec = util.find_spec("llama_cpp")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in sorted(Path(folder, "lib").glob("*")):
            status = library.stat()
            digest.update(f"{library} {status.st_size} {status.st_mtime_ns}".encode())
    return f"llama-cpp-python {version}, {digest.hexdigest()[:16]}"


def this_machine() -> Stamp:
    """Return this build on this processor in the form of a file's stamp."""
    return Stamp(f"{processor()} with {engine_build()}", 0, 0, 0)


def address_space_left() -> float:
    """Return how many bytes this process may still map; infinity without a limit (`ulimit -v`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    unlimited = limit == resource.RLIM_INFINITY
    return math.inf if unlimited else float(limit - psutil.Process().memory_info().vms)


def machine_memory() -> int:
    return int(psutil.virtual_memory().total)


def usable_processors() -> int:
    """Count the processors that this process may run on, including hyper-threads."""
    if hasattr(os, "sched_getaffinity"):  # psutil supports this on fewer systems
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """Return the threads to use: one per usable core without hyper-threads, within the container's share of CPU time.

    More would wait for each other: ggml's threads spin at barriers until a thread without a core gets one.
    """
    root = Path("/")
    return max(1, int(min(physical_cores(usable_processors(), root), _cpu_share(root))))


def physical_cores(allowed: int, root: Path) -> int:
    """Count the physical cores among `allowed` processors, on macOS only the fast ones. root: where /sys is."""
    smt = root / "sys/devices/system/cpu/smt/active"
    if smt.is_file():  # half even with two kinds of cores: the slow ones have no hyper-threads
        return allowed // 2 if smt.read_text().strip() == "1" else allowed
    fast = _sysctl("hw.perflevel0.physicalcpu") if sys.platform == "darwin" else ""
    return min(allowed, int(fast or psutil.cpu_count(logical=False) or allowed))


def _sysctl(name: str) -> str:
    command = ["/usr/sbin/sysctl", "-n", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    return done.stdout.strip()


def _cpu_share(root: Path) -> float:
    """Return the CPUs that control groups grant this process, or infinity. root: where /proc and /sys are."""
    top = root / "sys/fs/cgroup"
    lines = [line for line in _lines(root / "proc/self/cgroup") if line.startswith("0::/")]
    group = top / lines[0].removeprefix("0::/") if lines else top
    around = [folder for folder in group.parents if folder.is_relative_to(top)]
    return max(1.0, min(map(_quota, [group, *around])))


def _quota(folder: Path) -> float:
    """Return the CPUs that a control group grants; infinity without a limit."""
    try:
        quota, period = _lines(folder / "cpu.max")[0].split()
        return int(quota) / int(period)
    except (ValueError, IndexError, ZeroDivisionError):  # "max", or no such file
        return math.inf


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


# -- other programs ----------------------------------------------------------------------------------------------------

_SHORT_S = 0.1  # clocks that tick every 10 ms are too coarse for less
_SOME = 0.25  # processors that others may always use: a system is never quite idle
_TICK_S = 0.01


class Watch:
    """Measures how much CPU time other programs have used since its creation. processors: how many are watched.

    near: watch only the processors this process may use, measure since the last call, and count its children as others.
    """

    def __init__(self, *, near: bool = False) -> None:
        self._near = near
        mine = os.sched_getaffinity(0) if near and hasattr(os, "sched_getaffinity") else ()
        self._mine = frozenset(mine)  # empty for all
        self.processors = len(self._mine) or os.cpu_count() or 1
        self._before = self._read()

    def others(self) -> float:
        """Return the CPU seconds per second that other programs used."""
        now = self._read()
        passed, worked, own = (after - before for after, before in zip(now, self._before))
        if passed < _SHORT_S:
            return 0.0
        if self._near:
            self._before = now
        else:
            own += 2.0 * _TICK_S  # each count is rounded to a tick
        return max(0.0, worked - own) / passed

    def busy(self, threads: int) -> bool:
        """Whether others needed processors of this process's `threads` threads, so that a time measured meanwhile says little."""
        return self.others() > max(0, self.processors - threads) + _SOME

    def _read(self) -> tuple[float, float, float]:
        own = process_time() if self._near else _own_s()
        return perf_counter(), _all_s(self._mine), own


def is_quiet() -> bool:
    """Whether hardly anything ran in the last minute, by the system's load average."""
    return bool(psutil.getloadavg()[0] < 2.0 * _SOME)


def _all_s(only: frozenset[int]) -> float:
    """Return the seconds that all processors have worked, or only these."""
    kinds = ("user", "nice", "system", "irq", "softirq")  # not every system tells all of them
    each = [t for i, t in enumerate(psutil.cpu_times(percpu=True)) if i in only or not only]
    return sum(getattr(times, kind, 0.0) for times in each for kind in kinds)


def _own_s() -> float:
    """Return the seconds that this process and its living children have worked."""
    me, out = psutil.Process(), 0.0
    for process in (me, *me.children()):
        with suppress(psutil.Error):  # it may have ended meanwhile
            times = process.cpu_times()
            out += times.user + times.system
    return out
