"""Shared parts of the scripts here: a command line, turns, and comparisons over one target, stored with their page."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from math import exp, sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import msgspec
from measure.contenders import ServerProcess
from measure.records import ModelFile, commit, machine, model_file, published
from measure.report import code_of

T = TypeVar("T")

_T_95 = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12,
)  # fmt: skip
"""Student's t at 97.5 %, by degrees of freedom from 1."""


def half_width(values: Sequence[float]) -> float:
    """Half of the mean's 95 % interval, by Student's t; needs at least two values."""
    return _T_95[min(len(values) - 1, len(_T_95)) - 1] * stdev(values) / sqrt(len(values))


def times(logs: Sequence[float]) -> str:
    """A mean ratio with its 95 % interval, from at least two logarithms."""
    middle, half = mean(logs), half_width(logs)
    return f"{exp(middle):.2f} ({exp(middle - half):.2f} to {exp(middle + half):.2f})"


def arguments(
    doc: str | None, words: Sequence[str] | None, *given: str, **options: Any
) -> argparse.Namespace:
    """Parse a command line. doc: the text of --help. given: required arguments; those that end in "?" or "*" are optional.

    options: their defaults, which give their types and are shown in the usage; False makes a flag, None takes a path.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form)
    for name in given:
        count = name[-1] if name[-1] in "?*" else None
        parser.add_argument(name.rstrip("?*"), nargs=count)
    for name, default in options.items():
        option, shown = f"--{name.replace('_', '-')}", "TEXT" if default == "" else str(default)
        if default is False:
            parser.add_argument(option, action="store_true")
        elif default is None:
            parser.add_argument(option, type=Path, metavar="PATH")
        else:
            parser.add_argument(option, default=default, type=type(default), metavar=shown)
    return parser.parse_args(words)


def in_turns(
    contenders: Iterable[str], repeat: int, measure: Callable[[str], T]
) -> dict[str, list[T]]:
    """Measure each contender `repeat` times, in turns; each result is printed to stderr at once."""
    found: dict[str, list[T]] = {one: [] for one in contenders}
    for _ in range(repeat):
        for one, runs in found.items():
            runs.append(measure(one))
            print(one, json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return found


class StreamedAnswer(NamedTuple):
    """A streamed answer. times: seconds from the request to each piece of text; whole: to its end; block: `speculation`."""

    text: str
    tokens: int
    times: list[float]
    whole: float
    block: dict[str, Any]

    @property
    def first(self) -> float:
        """Seconds to its first text, or to its end if it has none."""
        return self.times[0] if self.times else self.whole

    @property
    def gap(self) -> float:
        """Seconds of the longest wait between two pieces of text."""
        return max((later - sooner for sooner, later in pairwise(self.times)), default=0.0)


def streamed(
    process: ServerProcess, messages: Sequence[Mapping[str, str]], **more: Any
) -> StreamedAnswer:
    """Have a server answer at temperature 0, and time it. Raises ValueError if the stream ends without usage."""
    body = {"messages": messages, "temperature": 0, "stream": True, **more}
    body["stream_options"] = {"include_usage": True}
    text, tokens, block, line = "", 0, dict[str, Any](), b""
    start, times = time.perf_counter(), list[float]()
    for line in process.lines("/v1/chat/completions", body):
        now = time.perf_counter() - start
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            block = chunk.get("speculation") or block
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            content = "".join(one["delta"].get("content") or "" for one in chunk.get("choices", ()))
            if content:
                times.append(now)
                text += content
    if not tokens:
        raise ValueError(f"the stream ended without usage: {line[:300]!r}")
    return StreamedAnswer(text, tokens, times, time.perf_counter() - start, block)


def resident(what: str, process: int | str = "self") -> float:
    """MiB of a process by its id, or of this one: VmRSS now, VmHWM at most since its start; 0 but on Linux."""
    status = Path(f"/proc/{process}/status")
    found = re.search(rf"{what}:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) / 2**10 if found else 0.0


Figures = dict[str, float]
"""The figures of one run of a contender, by name."""


def medians(runs: Sequence[Figures]) -> Figures:
    """Each figure's median over runs; errors are summed."""
    return {key: (sum if key == "errors" else median)(run[key] for run in runs) for key in runs[0]}


def alone(script: str, given: Sequence[str]) -> Callable[[str], Figures]:
    """Measures a contender in a process of its own, by the same script, which prints its figures as JSON."""

    def measure(contender: str) -> Figures:
        own = [sys.executable, script, *given, "--contender", contender]
        said = subprocess.run(own, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures: Figures = json.loads(said.splitlines()[-1])
        return figures

    return measure


class Comparison(msgspec.Struct, kw_only=True):
    """Results of a comparison. max_tokens: of an answer; repeat: runs of each contender; contenders: their medians, by name."""

    heading: ClassVar[str]
    intro: ClassVar[str]
    work: ClassVar[str]
    """What every contender had to do; may name fields of the comparison."""
    how: ClassVar[str] = "temperature 0, strict; medians of {0.repeat}, the contenders taking turns"
    """How it was measured; may name the same fields."""

    title: str
    command: str
    day: str
    machine: str
    threads: int
    target: ModelFile
    max_tokens: int
    repeat: int
    contenders: list[dict[str, Any]]
    commit: str = ""

    def find(self, name: str) -> dict[str, Any] | None:
        """A contender's figures by its name."""
        return next((one for one in self.contenders if one["name"] == name), None)

    def table(self) -> str:
        """The contenders' figures as Markdown."""
        raise NotImplementedError


def compare(
    kind: type[Comparison],
    name: str,
    options: argparse.Namespace,
    words: Sequence[str] | None,
    contenders: Iterable[str],
    measure: Callable[[str], Figures],
    **more: Any,
) -> None:
    """Measure contenders in turns, and print their medians; with --out, also write them and the page of bench/NAME.py.

    more: what the kind has beyond a `Comparison`.
    """
    runs = in_turns(contenders, options.repeat, measure)
    target = Path(options.model)
    results = kind(
        title=options.title or f"{name.capitalize()}, {target.stem}",
        command=command_line(name, words),
        day=today(),
        machine=machine(),
        threads=options.threads,
        target=model_file(target),
        max_tokens=options.tokens,
        repeat=options.repeat,
        contenders=[{"name": one, **medians(those)} for one, those in runs.items()],
        commit=commit(),
        **more,
    )
    print(results.table())
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
        write_page(options.out.parent, kind)


def today() -> str:
    """The date, UTC."""
    return datetime.now(timezone.utc).date().isoformat()


def command_line(name: str, words: Sequence[str] | None) -> str:
    """The command line of bench/NAME.py in publishable form. words: None for those of this process."""
    return published(f"python bench/{name}.py", sys.argv[1:] if words is None else words)


class Made(msgspec.Struct):
    """A script's results on this machine, with the commit of the code that ran, and the day where it was kept."""

    command: str
    machine: str
    commit: str
    day: str = ""

    @property
    def made(self) -> str:
        """How the results were made, as a page says it."""
        when = f" on {self.day}" if self.day else ""
        return f"Made by `{self.command}`{code_of(self.commit)}{when}: {self.machine}."


def made_by(name: str, words: Sequence[str] | None) -> dict[str, str]:
    """The fields of a `Made` of bench/NAME.py."""
    return {
        "command": command_line(name, words), "machine": machine(), "commit": commit(), "day": today(),
    }  # fmt: skip


class Paged(Protocol):
    """A script's results, and their page."""

    def page(self) -> str:
        """The whole README.md."""


def page_of(title: str, about: str | None, *parts: str) -> str:
    """A page: its title, the script's docstring, how it was made, and the results."""
    return "\n\n".join([f"# {title}", (about or "").strip(), *parts]) + "\n"


def keep(found: Paged, path: Path) -> None:
    """Write results as JSON, and their page next to them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    write_one(path, type(found))


def write_one(path: Path, kind: type[Paged]) -> None:
    """Write the page of the only results file in a folder."""
    found = msgspec.json.decode(path.read_bytes(), type=kind)
    path.with_name("README.md").write_text(found.page(), encoding="utf-8")


def write_page(folder: Path, kind: type[Comparison]) -> None:
    """Write the page of all results in a folder."""
    parts = [f"# {kind.heading}", kind.intro]
    for path in sorted(folder.glob("*.json")):
        found = msgspec.json.decode(path.read_bytes(), type=kind)
        made = (
            f"Made by `{found.command}` on {found.day}{code_of(found.commit)}: {found.machine}, {found.threads} threads; "
            f"{found.work.format(found)}, {found.how.format(found)}. "
            f"Target {found.target.name}, sha256 {found.target.sha256}."
        )
        parts += [f"## {found.title}", made, found.table()]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
