"""Records of runs: what a measurement depends on, and its answers as JSON lines, appended one by one.

A file that was cut off in the middle of a line is continued after its last whole line.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec

from pyspec._version import __version__
from pyspec.engine.profiles import gpu_layers
from pyspec.engine.target import TargetLlama
from pyspec.errors import InputError, ResumeMismatch
from pyspec.machine.devices import layer_devices
from pyspec.machine.files import file_sha256
from pyspec.machine.machine import machine_memory, processor, usable_processors
from pyspec.machine.others import file_name_of

from .questions import Question, json_lines
from .tasks import Options


class ModelFile(msgspec.Struct, frozen=True):
    """A model file that took part; without its folder, since results are published."""

    name: str
    sha256: str
    size: int


class Setup(msgspec.Struct, frozen=True):
    """Everything that must be equal for records to be compared, and the day; commit: of the code, "" if unknown."""

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
    commit: str = ""
    devices: str = ""  # those of the layers
    engine: str = ""  # llama.cpp's options that were given


def describe(
    llm: TargetLlama, files: Mapping[str, Path], how: Options, questions: Sequence[Question], n_ctx: int,
    engine: str = "",
) -> Setup:  # fmt: skip
    """The setup of a run with a loaded target and these files by role; questions are stored as their number and a hash."""
    texts = json.dumps([[q.question_id, q.turns] for q in questions])
    return Setup(
        pyspec=__version__,
        llama_cpp_python=metadata.version("llama-cpp-python"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        machine=machine(),
        gpu_layers=gpu_layers(llm),
        threads=int(llm.n_threads),
        n_ctx=n_ctx,
        max_tokens=how.max_tokens,
        temperature=how.temperature,
        seed=how.seed,
        files={role: model_file(path) for role, path in files.items()},
        questions=f"{len(questions)} questions, {hashlib.sha256(texts.encode()).hexdigest()[:16]}",
        day=datetime.now(timezone.utc).date().isoformat(),
        commit=commit(),
        devices=" + ".join(
            each.description for each in layer_devices(llm.devices) if gpu_layers(llm)
        ),
        engine=engine,
    )


def commit() -> str:
    """The commit of the running code, with "+" if the code was changed since; "" outside its repository.

    Results do not count as code: a run after another one has the same commit.
    """
    git = ["git", "-C", str(Path(__file__).parent)]
    code = [":/", ":(top,exclude)bench/results"]
    try:
        _output(*git, "ls-files", "--error-unmatch", Path(__file__).name)
        short = _output(*git, "rev-parse", "--short", "HEAD")
        changed = _output(*git, "status", "--porcelain", "--untracked-files=no", "--", *code)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{short}+" if changed else short


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True).stdout.decode().strip()


def model_file(path: Path) -> ModelFile:
    """Name, hash and size of a model file."""
    return ModelFile(file_name_of(path), file_sha256(path), path.stat().st_size)


def machine() -> str:
    """The processor's name, the cores that this process may use, and the memory."""
    return f"{processor()}, {usable_processors()} cores, {round(machine_memory() / 2**30)} GiB"


def published(program: str, words: Sequence[str]) -> str:
    """A command line as it may be published: paths of this machine are cut to their last part.

    A word with "=" is a mode (`margin/gap=1`), unless it begins with dashes.
    """

    def bare(word: str) -> str:
        option, equals, value = word.partition("=")
        if equals and not option.startswith("--"):
            return word
        front, path = (option + equals, value) if equals else ("", word)
        return front + Path(path).name if os.sep in path else word

    return " ".join([program, *(shlex.quote(bare(word)) for word in words)])


BOUND = 0.05
"""Processor seconds that others use per second: an answer timed beside more than this is timed again."""


class TimedAnswer(msgspec.Struct):
    """One answer. Times are in seconds, measured from outside; memory is not measured here.

    first_s: until the first token; decode_s: from the first token to the last; speculation: the answer's own statistics; nats: of
    each token under the target, where quality is measured; rounds: for
    each round, rows that the target decoded and tokens that it emitted; unknown for peers.
    """

    prompt_tokens: int
    tokens: list[int]
    finish: str
    first_s: float
    decode_s: float
    total_s: float
    speculation: dict[str, Any] = {}
    text: str = ""
    nats: list[float] = []
    rounds: list[tuple[int, int]] = []


class RunRecord(msgspec.Struct):
    """One question answered in one mode. `who` is a mode of pyspec or a peer.

    others: processor seconds per second that other programs took meanwhile.
    """

    who: str
    question_id: int | str
    category: str
    repeat: int
    turns: list[TimedAnswer]
    setup: Setup
    exact: bool = False
    peer: bool = False
    error: str = ""
    others: float = 0.0

    @property
    def key(self) -> tuple[str, int | str, int]:
        """What identifies a record in a file."""
        return self.who, self.question_id, self.repeat


class Difference(msgspec.Struct):
    """Where an answer first differs from plain decoding's.

    gap: nats between the target's two best tokens there; "alone" if truncation left one, the opposite of a near-tie; None if not
    measured. rounding: whether decodes with as many rows reproduce both choices; None if the rounds are unknown.
    """

    who: str
    question_id: int | str
    turn: int
    place: int
    plain: int | None
    other: int | None
    gap: float | Literal["alone"] | None = None
    repeat: int = 0
    rounding: bool | None = None

    def __str__(self) -> str:
        gap = "" if self.gap is None else "; truncation leaves the target one token"
        if isinstance(self.gap, float):
            gap = f"; the target's two best are {self.gap:.3f} nats apart"
        return (
            f"{self.who} differs from plain at question {self.question_id}, turn {self.turn + 1}, "
            f"token {self.place + 1}: {self.other}, not {self.plain}{gap}"
        )


class RunLog:
    """A file of records that a run appends to and a later run resumes."""

    def __init__(self, path: Path, setup: Setup) -> None:
        self.path, self.setup = path, setup
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records = read_run_records(path) if path.exists() else []
        for record in self.records:
            if differs := _difference(record.setup, setup):
                hint = "give another --out, or remove the file"
                raise ResumeMismatch(f"{path} holds runs of another setup ({differs})", hint)
        self._done = {record.key for record in self.records if not record.error}

    def has(self, who: str, question_id: int | str, repeat: int) -> bool:
        """Whether this run was made already."""
        return (who, question_id, repeat) in self._done

    def add(self, record: RunRecord) -> None:
        """Append a record; it is on disk when this returns."""
        with self.path.open("ab") as out:
            out.write(msgspec.json.encode(record) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        self.records.append(record)
        self._done.add(record.key)


def read_run_records(path: Path) -> list[RunRecord]:
    """Read the records of a file; an unfinished last line is removed from it.

    Raises InputError if the file cannot be read or a line is no record.
    """
    try:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return [record for _, record in json_lines(data[:whole].splitlines(), RunRecord, str(path))]


def _difference(old: Setup, new: Setup) -> str:
    """Why records of both setups cannot share a table; "" if they can. The day does not matter."""
    for name in Setup.__struct_fields__:
        one, two = getattr(old, name), getattr(new, name)
        if name != "day" and one != two:
            return f"{name} was {one!r:.80}, is {two!r:.80}"
    return ""
