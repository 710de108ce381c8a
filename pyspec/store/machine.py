"""What is known of this machine and its llama.cpp: the processor, the build, and whether extra weight buffers work.

llama.cpp copies weights into layouts of its own ("extra buffers": AMX tiles, repacked blocks) where the processor has
kernels for them. Where those kernels crash, as AMX's do when GCC 12 compiled them, every model can be used without.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata, util
from itertools import takewhile
from pathlib import Path

import psutil

from pyspec.errors import OptionError
from pyspec.store.files import Stamp, recall, remember

log = logging.getLogger("pyspec")

EXTRA_BUFFERS = ("auto", "on", "off")
"""What `extra_buffers` may be."""

_KIND = "extra buffers"
_session: dict[str, bool] = {}  # a cache that cannot be written is no reason to try again


@cache
def processor() -> str:
    """The processor's name as the system gives it."""
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    if sys.platform == "darwin" and (name := _sysctl("machdep.cpu.brand_string")):
        return name
    return platform.processor() or platform.machine()


@cache
def has_amx() -> bool:
    """Whether the processor says that it multiplies tiles (AMX)."""
    flags = next((line for line in _cpuinfo() if line.startswith("flags")), "")
    return {"amx_tile", "amx_int8"} <= set(flags.split())


@cache
def _cpuinfo() -> tuple[str, ...]:
    """What the system says of its first core."""
    return tuple(takewhile(str.strip, _lines(Path("/proc/cpuinfo"))))


@cache
def engine_build() -> str:
    """The llama-cpp-python that is installed, and which build of it: another compiler makes another file."""
    try:
        version = metadata.version("llama_cpp_python")
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    digest = hashlib.sha256()
    spec = util.find_spec("llama_cpp")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in sorted(Path(folder, "lib").glob("*")):
            status = library.stat()
            digest.update(f"{library} {status.st_size} {status.st_mtime_ns}".encode())
    return f"llama-cpp-python {version}, {digest.hexdigest()[:16]}"


def extra_buffers_known(option: str) -> bool | None:
    """Whether weights may go to extra buffers: as the option says, or as `auto` was found out here; None if it was not.

    Raises OptionError for another word than auto, on and off.
    """
    if option not in EXTRA_BUFFERS:
        raise OptionError(f"extra_buffers is {option!r}", "use auto, on or off")
    if option != "auto":
        return option == "on"
    here = this_machine()
    if here.realpath not in _session and (fact := recall(_KIND, here)) in ("on", "off"):
        _session[here.realpath] = fact == "on"
    return _session.get(here.realpath)


def remember_extra_buffers(works: bool) -> None:
    """Keep for this build on this machine, whatever the file, whether extra buffers work."""
    here = this_machine()
    _session[here.realpath] = works
    remember(_KIND, here, "on" if works else "off")
    if not works:
        log.warning(
            "llama.cpp crashes on this processor with extra weight buffers (AMX, repacking), so models are loaded "
            "without them from now on; a llama-cpp-python built with GCC 13 or newer may do better"
        )


def this_machine() -> Stamp:
    """This build on this processor, in the form of a file's state."""
    return Stamp(f"{processor()} with {engine_build()}", 0, 0, 0)


def address_space_left() -> float:
    """Bytes that this process may still map; infinity without a limit (`ulimit -v`)."""
    try:
        import resource  # noqa: PLC0415 - absent on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        unlimited = limit == resource.RLIM_INFINITY
        return math.inf if unlimited else float(limit - psutil.Process().memory_info().vms)
    except (ImportError, OSError, psutil.Error):
        return math.inf


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return int(psutil.virtual_memory().total)


def usable_processors() -> int:
    """Processors that this process may run on, hyper-threads counted."""
    if hasattr(os, "sched_getaffinity"):  # psutil knows it on fewer systems
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """Threads that this process may really use: its cores without hyper-threads, within the container's share of CPU time.

    More would wait for each other: ggml's threads spin at barriers that a thread without a core keeps closed.
    """
    root = Path("/")
    return max(1, int(min(physical_cores(usable_processors(), root), _cpu_share(root))))


def physical_cores(allowed: int, root: Path) -> int:
    """Cores without hyper-threads among so many processors; of macOS the performance cores, which psutil does not tell apart.

    root: where /sys is.
    """
    smt = root / "sys/devices/system/cpu/smt/active"
    if (
        smt.is_file()
    ):  # of processors with cores of two kinds half as well: the slow ones have no hyper-threads
        return allowed // 2 if smt.read_text().strip() == "1" else allowed
    fast = _sysctl("hw.perflevel0.physicalcpu") if sys.platform == "darwin" else ""
    return min(allowed, int(fast or psutil.cpu_count(logical=False) or allowed))


def _sysctl(name: str) -> str:
    """One of macOS's facts, or the empty string."""
    asked = ["/usr/sbin/sysctl", "-n", name]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False)
    return done.stdout.strip()


def _cpu_share(root: Path) -> float:
    """CPUs that the control groups of this process grant it; infinity where there is no such limit.

    root: where /proc and /sys are.
    """
    shares = [math.inf]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            shares.append(_quota(folder))
            if folder == top:
                break
    return max(1.0, min(shares))


def _quota(folder: Path) -> float:
    """The CPUs that one control group grants, of either version; infinity without a limit."""
    try:
        if fields := _lines(folder / "cpu.max"):
            quota, period = fields[0].split()
        else:
            quota, period = (
                _lines(folder / f"cpu.cfs_{name}_us")[0] for name in ("quota", "period")
            )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (ValueError, IndexError, ZeroDivisionError):  # "max", or no such files
        return math.inf


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
