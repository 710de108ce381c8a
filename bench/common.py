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
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
from measure.contenders import ServerProcess
from measure.records import ModelFile, commit, machine, model_file, published
from measure.report import code_of

T = TypeVar("T")

_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
)  # fmt: skip
"""Student's t at 97.5 %, by degrees of freedom from 1."""


def student_t(freedom: int) -> float:
    """Student's t at 97.5 %; beyond the table by the first terms of its expansion around the normal's (Cornish and Fisher)."""
    known = freedom <= len(_T_95)
    return _T_95[freedom - 1] if known else 1.960 + 2.372 / freedom + 2.822 / freedom**2


def half_width(values: Sequence[float]) -> float:
    """Half of the mean's 95 % interval, by Student's t; needs at least two values."""
    return student_t(len(values) - 1) * stdev(values) / sqrt(len(values))


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
    """Measure each contender `repeat` times, in turns, every second of which goes backwards, so that neighbours change.

    Each result is printed to stderr at once.
    """
    found: dict[str, list[T]] = {one: [] for one in contenders}
    for turn in range(repeat):
        for one in list(found)[:: -1 if turn % 2 else 1]:
            found[one].append(measure(one))
            print(one, json.dumps(found[one][-1]), file=sys.stderr, flush=True)
    return found


class StreamedAnswer(NamedTuple):
    """A streamed answer. times: seconds from the request to each piece of text; whole: to its end."""

    text: str
    tokens: int
    times: list[float]
    whole: float

    @property
    def first(self) -> float:
        """Seconds to its first text, or to its end if it has none."""
        return self.times[0] if self.times else self.whole

    @property
    def gap(self) -> float:
        """Seconds of the longest wait between two pieces of text."""
        return max((later - sooner for sooner, later in pairwise(self.times)), default=0.0)


def streamed(
    process: ServerProcess, messages: Sequence[Mapping[str, str]], max_tokens: int
) -> StreamedAnswer:
    """Have a server answer at temperature 0, and time it. Raises ValueError if the stream ends without usage."""
    body = {
        "messages": messages, "temperature": 0, "max_tokens": max_tokens, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    text, tokens, line = "", 0, b""
    start, times = time.perf_counter(), list[float]()
    for line in process.lines("/v1/chat/completions", body):
        now = time.perf_counter() - start
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            content = "".join(one["delta"].get("content") or "" for one in chunk.get("choices", ()))
            if content:
                times.append(now)
                text += content
    if not tokens:
        raise ValueError(f"the stream ended without usage: {line[:300]!r}")
    return StreamedAnswer(text, tokens, times, time.perf_counter() - start)


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


class Made(msgspec.Struct):
    """A script's results on this machine, with the commit of the code that ran, and the day where it was kept."""

    command: str
    machine: str
    commit: str = ""
    day: str = ""

    @property
    def made(self) -> str:
        """How the results were made, as a page says it."""
        when = f" on {self.day}" if self.day else ""
        return f"Made by `{self.command}`{code_of(self.commit)}{when}: {self.machine}."

    def page(self) -> str:
        """The whole README.md."""
        raise NotImplementedError

    @classmethod
    def page_of_all(cls, found: Sequence[Any]) -> str:
        """The page of all results in a folder, of which most kinds have one."""
        (one,) = found
        return str(one.page())


class Comparison(Made, kw_only=True):
    """Results of a comparison. max_tokens: of an answer; repeat: runs of each contender; contenders: their medians, by name."""

    heading: ClassVar[str]
    intro: ClassVar[str]
    work: ClassVar[str]
    """What every contender had to do; may name fields of the comparison."""
    how: ClassVar[str] = "temperature 0, strict; medians of {0.repeat}, the contenders taking turns"
    """How it was measured; may name the same fields."""

    title: str
    threads: int
    target: ModelFile
    max_tokens: int
    repeat: int
    contenders: list[dict[str, Any]]

    def find(self, name: str) -> dict[str, Any] | None:
        """A contender's figures by its name."""
        return next((one for one in self.contenders if one["name"] == name), None)

    def table(self) -> str:
        """The contenders' figures as Markdown."""
        raise NotImplementedError

    def page(self) -> str:
        """Its part of the page."""
        made = (
            f"Made by `{self.command}` on {self.day}{code_of(self.commit)}: {self.machine}, {self.threads} threads; "
            f"{self.work.format(self)}, {self.how.format(self)}. "
            f"Target {self.target.name}, sha256 {self.target.sha256}."
        )
        return f"## {self.title}\n\n{made}\n\n{self.table()}"

    @classmethod
    def page_of_all(cls, found: Sequence[Any]) -> str:
        """The parts one below the other."""
        return page_of(cls.heading, cls.intro, *(one.page() for one in found))


def compare(
    kind: type[Comparison], name: str, options: argparse.Namespace, words: Sequence[str] | None,
    contenders: Iterable[str], measure: Callable[[str], Figures], *, alone: bool = False, **more: Any,
) -> None:  # fmt: skip
    """Measure contenders in turns, and print their medians; with --out, also write them and the page of bench/NAME.py.

    alone: each is measured in a process of its own, by the same script with --contender, which prints its figures as JSON.
    more: what the kind has beyond a `Comparison`.
    """
    if alone and options.contender:
        print(json.dumps(measure(options.contender)))
        return

    def apart(contender: str) -> Figures:
        own = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *given(words)]
        said = subprocess.run(
            [*own, "--contender", contender], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        figures: Figures = json.loads(said.splitlines()[-1])
        return figures

    runs = in_turns(contenders, options.repeat, apart if alone else measure)
    target = Path(options.model)
    results = kind(
        **made_by(name, words),
        title=options.title or f"{name.capitalize()}, {target.stem}",
        threads=options.threads,
        target=model_file(target),
        max_tokens=options.tokens,
        repeat=options.repeat,
        contenders=[{"name": one, **medians(those)} for one, those in runs.items()],
        **more,
    )
    print(results.table())
    if options.out:
        keep(results, options.out)


def given(words: Sequence[str] | None) -> list[str]:
    """A script's words: None for those of this process."""
    return list(sys.argv[1:] if words is None else words)


def command_line(name: str, words: Sequence[str] | None = None) -> str:
    """The command line of bench/NAME.py in publishable form, without the page's own text."""
    told = given(words)
    at = told.index("--about") if "--about" in told else len(told)
    return published(f"python bench/{name}.py", [*told[:at], *told[at + 2 :]])


def made_by(name: str, words: Sequence[str] | None) -> dict[str, str]:
    """The fields of a `Made` of bench/NAME.py."""
    day = datetime.now(timezone.utc).date().isoformat()
    return {"command": command_line(name, words), "machine": machine(), "commit": commit(), "day": day}  # fmt: skip


def page_of(title: str, about: str | None, *parts: str) -> str:
    """A page: its title, the script's docstring, how it was made, and the results."""
    return "\n\n".join([f"# {title}", (about or "").strip(), *parts]) + "\n"


def publish(
    name: str, words: Sequence[str] | None, out: Path | None, title: str, *parts: str
) -> None:
    """Print a page of bench/NAME.py that has no results but its text, and write it to `out` if there is one."""
    page = page_of(title, f"Made by `{command_line(name, words)}`{code_of(commit())}.", *parts)
    print(page)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")


def keep(found: Made, path: Path) -> None:
    """Write results as JSON, and the page of all that are next to them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    write_page(path.parent, type(found))


def write_page(folder: Path, kind: type[Made]) -> None:
    """Write the page of all results in a folder."""
    paths = sorted(folder.glob("*.json"))
    page = kind.page_of_all([msgspec.json.decode(path.read_bytes(), type=kind) for path in paths])
    (folder / "README.md").write_text(page, encoding="utf-8")
