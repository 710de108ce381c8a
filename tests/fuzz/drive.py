"""Drives damaged model files through the class and the command, each in a process of its own.

    python tests/fuzz/drive.py [--count 10000] [--start 0] [--log FILE] [SEED ...]

A SEED is a number, for a mutant, or a name of `seeds.py`.

Prints one line for each seed that killed a process, ended in a traceback or took longer than 10 s, and a summary. With
--log each seed's verdict is kept, and the same command goes on where an interrupted one stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.mutate import mutant
from fuzz.seeds import seed as named

from pyspec.errors import PyspecError

TIMEOUT_S = float(os.environ.get("PYSPEC_FUZZ_TIMEOUT", "10"))
TEXT = "a b \0 é \ufffd"
ENTRIES = ("class", "command")


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


def _child(entry: str, path: Path, report: int) -> None:
    """In the forked process: one entry, its verdict into a pipe, no output."""
    silence = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(silence, fd)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
    try:
        kind, detail = (by_class if entry == "class" else by_command)(path), ""
    except PyspecError as error:
        kind, detail = "refused", f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
        kind, detail = "traceback", traceback.format_exc()[-1500:]
    os.write(report, f"{kind}\n{detail}".encode("utf-8", "replace")[:4000])
    os._exit(0)


def try_one(seed: int | str, entry: str, path: Path) -> Verdict:
    """One file through one entry, in a fork of this process; it must not have threads."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        _child(entry, path, writing)
    os.close(writing)
    status = _wait(pid)
    with os.fdopen(reading, "rb") as pipe:
        kind, _, detail = pipe.read().decode("utf-8", "replace").partition("\n")
    if status is None:
        return Verdict(seed, entry, "hang")
    if os.WIFSIGNALED(status):
        return Verdict(seed, entry, "death", f"signal {os.WTERMSIG(status)}")
    return Verdict(seed, entry, kind or "death", detail or f"status {status}")


def _wait(pid: int) -> int | None:
    """The child's status; None after it was ended for taking too long."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def drive(seeds: Iterable[int | str], log: Path | None = None) -> list[Verdict]:
    """Every seed through both entries; verdicts of a log that is there already are taken from it."""
    import pyspec.cli.generate
    import pyspec.llama  # noqa: F401

    known = _known(log)
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYSPEC_CACHE"] = str(Path(folder, "cache"))
        path = Path(folder, "mutant.gguf")
        for seed in seeds:
            if (seed, "command") in known:
                verdicts += [known[seed, entry] for entry in ENTRIES]
                continue
            path.write_bytes(mutant(seed) if isinstance(seed, int) else named(seed))
            found = [try_one(seed, entry, path) for entry in ENTRIES]
            verdicts += found
            if log is not None:
                with log.open("a", encoding="utf-8") as lines:
                    lines.writelines(f"{v.seed}\t{v.entry}\t{v.kind}\n" for v in found)
    return verdicts


def _known(log: Path | None) -> dict[tuple[int | str, str], Verdict]:
    if log is None or not log.exists():
        return {}
    rows = [line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()]
    return {(_seed(s), entry): Verdict(_seed(s), entry, kind) for s, entry, kind in rows}


def _seed(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def main() -> int:
    """The command; its exit status is 1 where something must not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=_seed)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    seeds = options.seeds or range(options.start, options.start + options.count)
    verdicts = drive(seeds, options.log)
    for verdict in verdicts:
        if not verdict.good:
            print(f"{verdict.seed} {verdict.entry}: {verdict.kind} {verdict.detail}")  # noqa: T201
    print(dict(Counter(f"{v.entry} {v.kind}" for v in verdicts)))  # noqa: T201
    return int(not all(verdict.good for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
