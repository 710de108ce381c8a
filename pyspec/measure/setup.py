"""What a measurement depends on, written into each record: versions, files, machine, options."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspec._version import __version__
from pyspec.profiles import gpu_layers
from pyspec.store.cache import file_sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspec.llama import SpeculativeLlama


class ModelFile(msgspec.Struct, frozen=True):
    """A model file that took part; no folder, since results are published."""

    name: str
    sha256: str
    size: int


class Setup(msgspec.Struct, frozen=True):
    """Everything that must be equal for two records to be compared, and the day."""

    pyspec: str
    llama_cpp_python: str
    python: str
    system: str
    machine: str
    gpu_layers: int
    threads: int
    n_ctx: int
    max_tokens: int
    temperature: float
    seed: int
    files: dict[str, ModelFile]
    questions: str
    day: str

    def comparable(self, other: Setup) -> bool:
        """Whether records of both may stand in one table."""
        return msgspec.structs.replace(other, day=self.day) == self


def describe(
    llm: SpeculativeLlama, *, max_tokens: int, temperature: float, seed: int, questions: str
) -> Setup:
    """The setup of a run with a loaded model; `questions` names the set and its hash."""
    assembly = llm._open()  # noqa: SLF001 - measuring looks inside
    paths = {"target": Path(llm.model_path)}
    paths.update(zip(("draft", "companion"), (m.path for m in assembly.models), strict=False))
    return setup_of(
        paths, threads=int(llm.n_threads), n_ctx=llm.n_ctx(), max_tokens=max_tokens,
        temperature=temperature, seed=seed, questions=questions, layers=gpu_layers(llm),
    )  # fmt: skip


def setup_of(
    paths: Mapping[str, Path],
    *,
    threads: int,
    n_ctx: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    questions: str,
    layers: int = 0,
) -> Setup:
    """The setup of a run with these files, by role, so many layers of the target on a GPU."""
    return Setup(
        pyspec=__version__,
        llama_cpp_python=metadata.version("llama-cpp-python"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        machine=machine(),
        gpu_layers=layers,
        threads=threads,
        n_ctx=n_ctx,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        files={role: model_file(path) for role, path in paths.items()},
        questions=questions,
        day=datetime.now(timezone.utc).date().isoformat(),
    )


def model_file(path: Path) -> ModelFile:
    """Name, hash and size of a model file."""
    return ModelFile(path.name, file_sha256(path), path.stat().st_size)


def machine() -> str:
    """The processor's name, how many cores this process may use, and the memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores, {_memory_gib()} GiB"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError, AttributeError):
        return 0
