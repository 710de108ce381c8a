"""Records of runs: what a measurement depends on, its answers as JSON lines, appended as they are made, and their speeds.

A file that was cut off in the middle of a line is continued behind its last whole line.
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
from statistics import geometric_mean, median
from typing import Any

import msgspec
import numpy as np

from pyspec._version import __version__
from pyspec.errors import InputError, ResumeMismatch
from pyspec.measure.tasks import Options, Question, decoded, grouped
from pyspec.profiles import device_names, gpu_layers
from pyspec.store.files import file_sha256
from pyspec.store.machine import machine_memory, processor
from pyspec.target import TargetLlama


class ModelFile(msgspec.Struct, frozen=True):
    """A model file that took part; no folder, since results are published."""

    name: str
    sha256: str
    size: int


class Setup(msgspec.Struct, frozen=True):
    """Everything that must be equal for two records to be compared, and the day; commit: of the code, "" for not known."""

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
    llm: TargetLlama,
    files: Mapping[str, Path],
    how: Options,
    questions: Sequence[Question],
    n_ctx: int,
    engine: str = "",
) -> Setup:
    """The setup of a run with a loaded target and these files, by role; of the questions their number and a hash."""
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
        devices=device_names(llm) if gpu_layers(llm) else "",
        engine=engine,
    )


def commit() -> str:
    """The commit of the code that runs, with "+" where it was changed since; "" where it does not run from its repository.

    Results are no code: a run that follows another one is of the same commit.
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
    return ModelFile(path.name, file_sha256(path), path.stat().st_size)


def machine() -> str:
    """The processor's name, how many cores this process may use, and the memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {cores} cores, {round(machine_memory() / 2**30)} GiB"


def published(program: str, words: Sequence[str]) -> str:
    """A command line as it may be published: of paths of this machine the last part alone.

    A word with "=" is a mode (`margin/gap=1`), unless it begins with dashes.
    """

    def bare(word: str) -> str:
        option, equals, value = word.partition("=")
        if equals and not option.startswith("--"):
            return word
        front, path = (option + equals, value) if equals else ("", word)
        return front + Path(path).name if os.sep in path else word

    return " ".join([program, *(shlex.quote(bare(word)) for word in words)])


# -- answers -----------------------------------------------------------------------------------------------------------


BOUND = 0.05
"""Processor seconds of others in a second: an answer timed beside more than this is timed again."""


class TimedAnswer(msgspec.Struct):
    """One answer. Times are seconds by the clock outside; memory is not measured here.

    first_s: until the first token; decode_s: from the first token to the last. speculation: the
    answer's own statistics. nats: of each token under the target, where quality is measured. rounds: rows that the target
    decoded in each round, and tokens that it emitted; none of a peer's are known.
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
    check: bool | None = None


class RunRecord(msgspec.Struct):
    """One question answered in one mode. `who` is a mode of pyspec or a peer.

    others: processor seconds a second that other programs took meanwhile.
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
        """What makes a record unique in a file."""
        return self.who, self.question_id, self.repeat


class Difference(msgspec.Struct):
    """Where an answer first parts from plain decoding's.

    gap: nats between the target's two best tokens there, or None where that was not measured. rounding: whether decodes of as
    many rows make both choices again; None where the rounds are not known.
    """

    who: str
    question_id: int | str
    turn: int
    place: int
    plain: int | None
    other: int | None
    gap: float | None = None
    repeat: int = 0
    rounding: bool | None = None

    def __str__(self) -> str:
        gap = "" if self.gap is None else f"; the target's two best are {self.gap:.3f} nats apart"
        return (
            f"{self.who} differs from plain at question {self.question_id}, turn {self.turn + 1}, "
            f"token {self.place + 1}: {self.other}, not {self.plain}{gap}"
        )


class RunLog:
    """A file of records that a run appends to and a later run resumes."""

    def __init__(self, path: Path, setup: Setup) -> None:
        self.path, self.setup = path, setup
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records = read_records(path) if path.exists() else []
        for record in self.records:
            if differs := _difference(record.setup, setup):
                hint = "give another --out, or remove the file"
                raise ResumeMismatch(f"{path} holds runs of another setup ({differs})", hint)
        self._done = {record.key for record in self.records if not record.error}

    def has(self, who: str, question_id: int | str, repeat: int) -> bool:
        """Whether this run was made already."""
        return (who, question_id, repeat) in self._done

    def add(self, record: RunRecord) -> None:
        """Append a record; it is on the disk when this returns."""
        with self.path.open("ab") as out:
            out.write(msgspec.json.encode(record) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        self.records.append(record)
        self._done.add(record.key)


def read_records(path: Path) -> list[RunRecord]:
    """The records of a file; an unfinished last line is removed from it.

    Raises InputError where the file cannot be read or a line is no record.
    """
    try:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return [record for _, record in decoded(data[:whole].splitlines(), RunRecord, str(path))]


def _difference(old: Setup, new: Setup) -> str:
    """What keeps records of both from standing in one table; "" for nothing. The day does not."""
    for name in Setup.__struct_fields__:
        one, two = getattr(old, name), getattr(new, name)
        if name != "day" and one != two:
            return f"{name} was {one!r:.80}, is {two!r:.80}"
    return ""


# -- how fast they were ------------------------------------------------------------------------------------------------


TOTAL = "total"


class Speed(msgspec.Struct):
    """A mode or peer on one category, or on all.

    rate: tokens a second after the first token, all questions together, times being medians over
    repeats. speed_up: rate over plain decoding's. low, mid, high: quartiles and median of the
    single questions' speed-ups.
    """

    rate: float
    speed_up: float
    low: float
    mid: float
    high: float


class Summary(msgspec.Struct):
    """A mode or peer over all questions. geomean: of the categories' speed-ups.

    answer_s: mean seconds of a whole answer, prompt included.
    other: share of the generation's time outside llama.cpp's decodes, None for peers.
    """

    who: str
    peer: bool
    exact: bool
    questions: int
    speeds: dict[str, Speed]
    geomean: float
    first_ms: float
    acceptance: float | None = None
    mean_length: float | None = None
    relaxed: float | None = None
    other: float | None = None
    answer_s: float = 0.0


def geomean(values: Sequence[float]) -> float:
    """Geometric mean; 0 where a value is not positive or there is none."""
    return geometric_mean(values) if values and min(values) > 0.0 else 0.0


_Cost = tuple[str, float, float]
"""A question's category, its tokens after the first ones, and their seconds."""


def _costs(records: Sequence[RunRecord]) -> dict[int | str, _Cost]:
    """By question: medians over repeats, without failed records."""
    whole = [record for record in records if not record.error]
    out = {}
    for question, group in grouped(whole, lambda record: record.question_id).items():
        tokens = median(sum(max(0, len(t.tokens) - 1) for t in r.turns) for r in group)
        seconds = median(sum(t.decode_s for t in r.turns) for r in group)
        if tokens > 0 and seconds > 0:
            out[question] = group[0].category, tokens, seconds
    return out


def _compare(own: dict[int | str, _Cost], base: dict[int | str, _Cost]) -> dict[str, Speed]:
    """Speeds by category and in total, on the questions that both answered."""
    both = [question for question in own if question in base]
    groups = grouped(both, lambda question: own[question][0])
    groups |= {TOTAL: both} if both else {}
    out = {}
    for name, group in groups.items():
        ratios = [_rate([own[q]]) / _rate([base[q]]) for q in group]
        rate, plain = _rate([own[q] for q in group]), _rate([base[q] for q in group])
        out[name] = Speed(rate, rate / plain, *map(float, np.percentile(ratios, (25, 50, 75))))
    return out


def _rate(group: Sequence[_Cost]) -> float:
    return sum(tokens for _, tokens, _ in group) / sum(seconds for *_, seconds in group)


def summarise(records: Sequence[RunRecord]) -> list[Summary]:
    """One summary for each mode and peer, in the order of the file; speed-ups against plain, or the first where it is missing."""
    by_who = grouped(records, lambda record: record.who)
    own = {who: _costs(group) for who, group in by_who.items()}
    against = own.get("plain") or next(iter(own.values()), {})
    return [_summary(who, by_who[who], _compare(own[who], against)) for who in by_who if own[who]]


def hindsight(summaries: Sequence[Summary]) -> Summary | None:
    """The best strict fixed length of each category, known afterwards; plain is length 0.

    None where fewer than two fixed lengths were measured. A yardstick, not a mode.
    """
    fixed = [s for s in summaries if "fixed:" in s.who and s.exact]
    if len(fixed) < 2:
        return None
    candidates = [*fixed, *(s for s in summaries if s.who == "plain")]
    best = {}
    for name in (name for name in fixed[0].speeds if name != TOTAL):
        there = [s.speeds[name] for s in candidates if name in s.speeds]
        best[name] = max(there, key=lambda speed: speed.speed_up)
    mean = geomean([speed.speed_up for speed in best.values()])
    questions = fixed[0].questions
    return Summary("best fixed, by category", False, True, questions, best, mean, 0.0)


def _summary(who: str, records: Sequence[RunRecord], speeds: dict[str, Speed]) -> Summary:
    turns = [turn for record in records if not record.error for turn in record.turns]
    rounds = _sum(turns, "rounds")
    verified, emitted = _sum(turns, "verified"), sum(len(turn.tokens) for turn in turns)
    timings = [t.speculation["timings"] for t in turns if "timings" in t.speculation]
    spent = sum(x["total_ms"] for x in timings)
    # a later turn finds most of its prompt read: first tokens are compared on first turns
    first = [r.turns[0].first_s for r in records if r.turns and not r.error]
    return Summary(
        who,
        records[0].peer,
        records[0].exact,
        len({r.question_id for r in records if not r.error}),
        speeds,
        geomean([s.speed_up for name, s in speeds.items() if name != TOTAL]),
        1e3 * median(first) if first else 0.0,
        acceptance=_sum(turns, "accepted") / verified if verified else None,
        mean_length=emitted / rounds if rounds else None,
        relaxed=_sum(turns, "relaxed") / emitted if rounds and emitted else None,
        other=sum(x["other_ms"] for x in timings) / spent if spent else None,
        answer_s=sum(turn.total_s for turn in turns) / max(1, len(turns)),
    )


def _sum(turns: Sequence[TimedAnswer], name: str) -> int:
    return sum(int(turn.speculation.get(name, 0)) for turn in turns)
