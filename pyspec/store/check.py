"""Decides whether a model file may be loaded into this process.

The first time a file is seen its header is read by our own reader, then llama.cpp loads it and
decodes one token in a child process. An acceptance is remembered for that state of the file and
that llama-cpp-python; a rejection is not, since its cause may be the machine's state.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pyspec.errors import ModelRejected
from pyspec.store.child import run_child
from pyspec.store.cursor import show
from pyspec.store.fingerprint import Stamp, recall, remember, stamp
from pyspec.store.header import read_header

if TYPE_CHECKING:
    import os

    from pyspec.store.gguf import Header

__all__ = ["check_model"]

_BASE_SECONDS = 60.0
_BYTES_PER_SECOND = 20e6  # a slow disk; the whole file is read once
_BASE_MEMORY = 16 << 30  # address space, not memory: thread stacks and libraries reserve much of it


def check_model(path: str | os.PathLike[str], trust: bool = False) -> None:
    """Returns if the model may be loaded.

    With `trust` only the header is read. Raises ModelNotFound, ModelUnreadable or ModelInvalid for
    the file itself, and ModelRejected when the trial load failed or died.
    """
    header = read_header(path)
    if trust:
        return
    parts = header.parts or (header.path,)
    stamps = [stamp(part) for part in parts]
    kind = f"loads in llama-cpp-python {_engine_version()}"
    fact = ";".join(str(tuple(s)) for s in stamps[1:])
    if recall(kind, stamps[0]) == fact:
        return
    _trial(header, stamps)
    if [stamp(part) for part in parts] == stamps:  # else it changed while it was tried
        remember(kind, stamps[0], fact)


def _engine_version() -> str:
    try:
        return metadata.version("llama_cpp_python")
    except metadata.PackageNotFoundError:
        return "of unknown version"


def _trial(header: Header, stamps: list[Stamp]) -> None:
    size = sum(s.size for s in stamps)
    memory = _BASE_MEMORY + 3 * size
    outcome = run_child(
        "_trial.py",
        [str(Path(header.path).absolute()), str(memory)],
        timeout=_BASE_SECONDS + size / _BYTES_PER_SECOND,
    )
    if not outcome.ok:
        raise ModelRejected(
            f"{show(header.path.name)} failed its trial load: {outcome.reason[:300]}",
            "get the file from its source again, or try a newer llama-cpp-python",
            outcome.signal,
        )
