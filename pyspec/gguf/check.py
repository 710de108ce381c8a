"""Decides whether and how a model file may be loaded into this process. Whatever may end a process runs in a child.

When a file is seen for the first time, our own reader reads its header. Then llama.cpp loads it in a child process as the run
will, and decodes. An acceptance is remembered for this state of the file, this machine and this llama-cpp-python. A rejection is
not, since its cause may be the machine's state.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from pyspec.errors import ModelRejected, OptionError
from pyspec.gguf.header import read_header
from pyspec.gguf.kinds import kind_of_draft, most_positions
from pyspec.gguf.reader import Header
from pyspec.machine import EXTRA_BUFFERS
from pyspec.machine.child import ChildExit, run_child
from pyspec.machine.files import Stamp, recall, remember, show, stamp, stamps
from pyspec.machine.machine import engine_build, has_amx, processor
from pyspec.machine.others import file_name_of, shipped_folders

log = logging.getLogger("pyspec")

_BASE_SECONDS = 60.0
_DEVICE_SECONDS = 900.0  # a first load compiles shaders or PTX for the card
_DECODE_SECONDS = 8.0  # CPU time for some decodes
_BYTES_PER_SECOND = 20e6  # a slow disk; the whole file is read once
_BASE_MEMORY = 16 << 30  # address space, not memory: thread stacks and libraries reserve a lot
_STACK = 9 << 20  # llama.cpp checks each tensor in a thread of its own
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGBUS}

_SELECTING = ("vocab_only", "embedding", "head", "type_k", "type_v", "overrides")


@dataclass(frozen=True)
class Loading:
    """How the run will load a model; the trial load does the same."""

    n_gpu_layers: int = 0
    devices: tuple[str, ...] = ()  # their names; empty for all
    split_mode: int = 1  # as in llama.cpp, like the next two
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    tensors: tuple[str, ...] = ()  # patterns of the names of tensors that stay in main memory
    offload_kqv: bool = True
    n_ctx: int = 512  # tokens
    n_threads: int = 2
    flash_attn: bool = True
    extra_buffers: str = "auto"  # on or off
    vocab_only: bool = False  # the file may lack weights
    embedding: bool = False  # compute nothing but embeddings
    head: bool = False  # load the next-token head
    type_k: int | None = None  # of the KV cache
    type_v: int | None = None
    overrides: tuple[tuple[str, bool | int | float | str], ...] = ()  # for values of the header
    lora: tuple[str, float] | None = None  # an adapter's file and scale

    @property
    def what(self) -> str:
        """What is done with the model, as far as that selects other code."""
        lora = f"lora {self.lora[1]} {stamp(Path(self.lora[0]))}" if self.lora else "no lora"
        return f"{[getattr(self, name) for name in _SELECTING]} with {lora}"

    @property
    def place(self) -> str:
        """Where layers go, as far as kernels depend on it; the number of layers is left out."""
        split = (self.split_mode, self.main_gpu, self.tensor_split, self.tensors)
        return f"devices {self.devices}, split {split}" if self.n_gpu_layers else "the CPU"


def check_model(
    path: str | os.PathLike[str], trust: bool = False, loading: Loading = Loading()
) -> bool:
    """Check whether a model may be loaded, and return whether its weights may go to extra buffers.

    With `trust`, only the header of a file not seen before is read. Files that ship with pyspec are checked only where AMX may
    crash. Raises ModelNotFound, ModelUnreadable or ModelInvalid for the file itself, ModelRejected if the trial failed or died.
    """
    path = Path(path)
    extra = extra_buffers(loading.extra_buffers)
    if ships(path) and not has_amx():
        return extra
    buffers = f"extra buffers {loading.extra_buffers}"
    kind = f"{loading.what} on {loading.place}, {buffers}, {processor()}, {engine_build()}"
    before = stamps(path)
    known = recall(kind, before[0])
    for works in (extra, False):
        if known == _fact(works, before):
            return works
    header = read_header(path, weights=not loading.vocab_only)
    if trust:
        return extra
    works = _trial(header, loading, extra)
    if stamps(path) == before:  # else it changed during the trial
        remember(kind, before[0], _fact(works, before))
    return works


def check_fitting(path: str | os.PathLike[str], trust: bool, loading: Loading) -> tuple[bool, bool]:
    """Run `check_model` for automatic placement on devices; also return whether layers may go there.

    A file that fails only on a device is still good: the device may be full, or its driver older than this build.
    """
    try:
        return check_model(path, trust, loading), True
    except ModelRejected as error:
        if not loading.n_gpu_layers:
            raise
        extra = check_model(path, trust, replace(loading, n_gpu_layers=0))
        name = show(Path(path).name)
        log.warning("all layers of %s stay on the CPU, because on a device %s", name, error)
        return extra, False


def ships(path: Path) -> bool:
    return os.path.realpath(path.parent) in map(os.path.realpath, shipped_folders())


def _fact(extra: bool, of: list[Stamp]) -> str:
    return f"{'with' if extra else 'without'} extra buffers {of[1:]}"


def extra_buffers(option: str = "auto") -> bool:
    """Whether llama.cpp may put weights into its own layouts, as for AMX. Raises OptionError for another word."""
    if option not in EXTRA_BUFFERS:
        raise OptionError(f"extra_buffers is {option!r}", "use auto, on or off")
    return option != "off"


def _trial(header: Header, loading: Loading, extra: bool) -> bool:
    """Try the file; return True if it works with extra buffers, False if only without. Raises ModelRejected.

    AMX's kernels crash if GCC 12 compiled them; every model still works without.
    """
    outcome = _run(header, loading, extra)
    if outcome.ok:
        return extra
    may_be_extra = extra and loading.extra_buffers == "auto" and outcome.signal in _CRASHES
    if may_be_extra and _run(header, loading, False).ok:
        log.warning(
            "llama.cpp crashes on this processor with extra weight buffers (AMX, repacking) for %s, which is loaded without "
            "them from now on; a llama-cpp-python built with GCC 13 or newer may not crash",
            show(file_name_of(header.path)),
        )
        return False
    raise ModelRejected(
        f"{show(file_name_of(header.path))} failed its trial load: {outcome.reason[:300]}",
        "end other programs if memory or time was short, skip the trial with trust=True (--trust-model), or fetch the file again",
        outcome.signal,
    )


def _run(header: Header, loading: Loading, extra: bool) -> ChildExit:
    """Run one trial in a child. With a GPU the address space is not limited: drivers reserve all of it."""
    size = sum(part.stat().st_size for part in header.parts)
    memory = _BASE_MEMORY + 3 * size + _STACK * len(header.tensors)
    base, reading = _BASE_SECONDS, size / _BYTES_PER_SECOND
    if loading.n_gpu_layers:
        base, memory = _DEVICE_SECONDS, 0
    wanted = {
        **vars(loading),
        "extra_buffers": extra,
        "positions": most_positions(header.path),
        "beside": bool(kind_of_draft(header.path)),
        "seconds": _DECODE_SECONDS + reading,
    }
    arguments = [str(header.path.absolute()), str(memory), json.dumps(wanted)]
    return run_child("trial", arguments, timeout=base + reading, gpu=loading.n_gpu_layers != 0)
