"""Drives damaged model files through the class, the command and the place of a draft, each in a process of its own.

    python tests/fuzz/drive.py [--count 10000] [--start 0] [--log FILE] [--jobs 2] [SEED ...]

A SEED is a number, for a mutant, or a name of `seeds.py`.

Prints one line for each seed that killed a process, ended in a traceback or took longer than 10 s, and last one line
with how many seeds there were and how many ended in each way. With --log each seed's verdict is kept, and the same
command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.forked import fork, run_child
from fuzz.mutate import mutant
from fuzz.seeds import seed as named
from store.make_gguf import tiny_llama

from pyspec.errors import PyspecError

TIMEOUT_S = float(os.environ.get("PYSPEC_FUZZ_TIMEOUT", "10"))
TEXT = "a b \0 é \ufffd"


class Verdict(NamedTuple):
    """How one entry took one file: "answered", "refused", or what must not be."""

    seed: int | str
    entry: str
    kind: str
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether it answered, or refused with one of pyspec's own exceptions."""
        return self.kind in ("answered", "refused")


def by_class(path: Path) -> str:
    """Load, complete and chat as a notebook would."""
    from pyspec.llama import SpeculativeLlama

    options = {"n_ctx": 64, "n_threads": 1, "n_batch": 32, "draft": "lookup", "companion": "none"}
    done = "refused"
    with SpeculativeLlama(str(path), **options) as llm:
        llm.create_completion("a", max_tokens=2)
        done = "answered"
        _tolerate(lambda: llm.create_completion(TEXT, max_tokens=2))
        _tolerate(
            lambda: llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=2)
        )
    return done


def _tolerate(call: Callable[[], object]) -> None:
    with contextlib.suppress(PyspecError):
        call()


def by_command(path: Path) -> str:
    """`pyspec generate`, in this process."""
    from pyspec.cli.main import main

    code: object = 0
    try:
        main(["generate", "a", "-m", str(path), "-n", "2", "-t", "1", "-c", "64", "--raw"])
    except SystemExit as end:
        code = end.code
    if code not in (0, 1, 2):
        raise RuntimeError(f"exit code {code}")
    return "answered" if code == 0 else "refused"


def by_side(path: Path) -> str:
    """As the draft of a model that is sound."""
    from pyspec.llama import SpeculativeLlama

    options = {"n_ctx": 64, "n_threads": 1, "n_batch": 32, "companion": "none"}
    with SpeculativeLlama(
        str(path.with_name("sound.gguf")), draft=str(path), length="fixed:3", **options
    ) as llm:
        llm.create_completion("abcab", max_tokens=6, temperature=0.0)
    return "answered"


ENTRIES: dict[str, Callable[[Path], str]] = {
    "class": by_class,
    "command": by_command,
    "draft": by_side,
}


def try_one(seed: int | str, entry: str, path: Path) -> Verdict:
    """One file through one entry, in a fork of this process."""

    def work(report: int) -> None:
        try:
            kind, detail = ENTRIES[entry](path), ""
        except PyspecError as error:
            kind, detail = "refused", f"{type(error).__name__}: {error}"
        except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
            kind, detail = "traceback", traceback.format_exc()[-1500:]
        os.write(report, f"{kind}\n{detail}".encode("utf-8", "replace")[:4000])
        os._exit(0)

    said, status, where = fork(work, TIMEOUT_S)
    if status is None:
        return Verdict(seed, entry, "hang", where)
    if os.WIFSIGNALED(status):
        return Verdict(seed, entry, "death", f"signal {os.WTERMSIG(status)}")
    kind, _, detail = said.partition("\n")
    return (
        Verdict(seed, entry, kind, detail)
        if kind
        else Verdict(seed, entry, "death", f"status {status}")
    )


def drive(seeds: Sequence[int | str], log: Path | None = None) -> list[Verdict]:
    """Every seed through every entry; verdicts of a log that is there already are taken from it."""
    import pyspec.cli.generate
    import pyspec.llama

    pyspec.store.check.run_child = run_child
    known = _known(log)
    wanted = set(seeds)
    verdicts = [verdict for verdict in known.values() if verdict.seed in wanted]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYSPEC_CACHE"] = str(Path(folder, "cache"))
        path = Path(folder, "mutant.gguf")
        path.with_name("sound.gguf").write_bytes(tiny_llama().build())
        for seed in seeds:
            if (seed, "command") in known:
                continue
            path.write_bytes(mutant(seed) if isinstance(seed, int) else named(seed))
            found = [try_one(seed, entry, path) for entry in ("class", "command")]
            if (
                found[0].kind == "answered"
            ):  # what is refused is refused by the same lines everywhere
                found.append(try_one(seed, "draft", path))
            verdicts += found
            if log is not None:
                with log.open("a", encoding="utf-8") as lines:
                    lines.writelines(_line(verdict) for verdict in found)
    return verdicts


def share(seeds: Sequence[int | str], log: Path | None, jobs: int) -> list[Verdict]:
    """`drive` by several processes, each with its part of the seeds."""
    if jobs == 1:
        return drive(seeds, log)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        parts = pool.starmap(drive, [(seeds[job::jobs], log) for job in range(jobs)])
    return [verdict for part in parts for verdict in part]


def summary(verdicts: Sequence[Verdict]) -> str:
    """One line: the seeds, what must not be, and how each entry took what it was given."""
    seeds = len({verdict.seed for verdict in verdicts})
    kinds = Counter(verdict.kind for verdict in verdicts)
    bad = f"{kinds['death']} deaths, {kinds['traceback']} tracebacks, {kinds['hang']} hangs"
    ways = sorted(Counter(f"{v.entry} {v.kind}" for v in verdicts if v.good).items())
    return f"{seeds} files: {bad}; " + ", ".join(f"{way} {count}" for way, count in ways)


def _line(verdict: Verdict) -> str:
    detail = "" if verdict.good else repr(verdict.detail)
    return "\t".join([str(verdict.seed), verdict.entry, verdict.kind, detail]) + "\n"


def _known(log: Path | None) -> dict[tuple[int | str, str], Verdict]:
    if log is None or not log.exists():
        return {}
    rows = [line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()]
    return {(_seed(row[0]), row[1]): Verdict(_seed(row[0]), *row[1:]) for row in rows}


def _seed(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def main() -> int:
    """The command; its exit status is 1 where something must not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=_seed)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    seeds = options.seeds or range(options.start, options.start + options.count)
    verdicts = share(seeds, options.log, options.jobs)
    for verdict in verdicts:
        if not verdict.good:
            print(f"{verdict.seed} {verdict.entry}: {verdict.kind} {verdict.detail}")  # noqa: T201
    print(summary(verdicts))  # noqa: T201
    return int(not all(verdict.good for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
