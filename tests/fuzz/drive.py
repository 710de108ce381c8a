"""Drives damaged files through the ways into the package, each in a process of its own.

    python tests/fuzz/drive.py [--kind target,head,mtp,lora] [--count 10000] [--start 0] [SEED ...]

Kinds: target (class, command, in a draft's place, batch), head (EAGLE-3), mtp (a model with a head of its own), lora,
charsmap (a tokenizer's table of characters), override (values that replace a header's), words (long texts by the names of all
tokenizers). A SEED is KIND:NUMBER, for a mutant, NUMBER for one of a target, KIND:sound, or a name of `seeds.py`. Bodies of
requests and grammars are driven by test_doors.py.

Prints one line for each seed that killed a process, ended in a traceback or took longer than 10 s, and last how many
ended in each way.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import bases
from fuzz.entries import FIRST, THEN
from fuzz.mutate import KINDS, mutant
from fuzz.seeds import seed as named
from helpers.forked import fork, run_child

from pyspec.errors import PyspecError

TIMEOUT_S = float(os.environ.get("PYSPEC_FUZZ_TIMEOUT", "10"))
BESIDE = ("target", "beside_head")
SOUND = "sound"


class Verdict(NamedTuple):
    """How one entry took one file: "answered", "refused", or what must not be."""

    seed: str
    entry: str
    kind: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.kind in ("answered", "refused")


def try_one(seed: str, entry: str, path: Path) -> Verdict:
    of = _parts(seed)[0]

    def work(report: int) -> None:
        try:
            kind, detail = (FIRST[of] | THEN.get(of, {}))[entry](path), ""
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


def write_beside(folder: Path) -> None:
    """The sound files that damaged ones are used with."""
    for name in BESIDE:
        Path(folder, name).write_bytes(bases.sound(name).build())


def try_all(seed: str, folder: Path) -> list[Verdict]:
    kind, which = _parts(seed)
    path = Path(folder, "mutant.gguf")
    path.write_bytes(_file(kind, which))
    found = [try_one(seed, entry, path) for entry in FIRST[kind]]
    if any(verdict.kind == "answered" for verdict in found):
        found += [try_one(seed, entry, path) for entry in THEN.get(kind, ())]
    return found


def drive(seeds: Sequence[str]) -> Iterator[Verdict]:
    import pyspec.cli.generate
    import pyspec.engine.models
    import pyspec.llama.speculative

    pyspec.gguf.check.run_child = pyspec.engine.models.run_child = run_child
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYSPEC_CACHE"] = str(Path(folder, "cache"))
        write_beside(Path(folder))
        for seed in seeds:
            yield from try_all(seed, Path(folder))


def _file(kind: str, which: str) -> bytes:
    if which == SOUND:
        return bases.sound(kind).build()
    return mutant(int(which), kind) if which.isdecimal() else named(which)


def _parts(seed: str) -> tuple[str, str]:
    """A seed's kind, and its number or name."""
    kind, _, which = seed.rpartition(":")
    return kind or "target", which


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", nargs="*")
    parser.add_argument("--kind", default="target", help=f"of {', '.join(KINDS)}; or all")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    kinds = KINDS if options.kind == "all" else options.kind.split(",")
    numbers = range(options.start, options.start + options.count)
    ways, good = Counter[str](), True
    for verdict in drive(options.seeds or [f"{kind}:{n}" for n in numbers for kind in kinds]):
        ways[f"{_parts(verdict.seed)[0]} {verdict.entry} {verdict.kind}"] += 1
        if not verdict.good:
            good = False
            print(f"{verdict.seed} {verdict.entry}: {verdict.kind} {verdict.detail}")  # noqa: T201
    print("\n".join(f"{way}: {count}" for way, count in sorted(ways.items())))  # noqa: T201
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
