"""What drafts add to startup: `pyspec generate` with them and with `--draft none`, one process each.

    python bench/load.py [MODEL] [--repeat 30] [--out FOLDER]

Processes with and without drafts come in pairs and take turns in going first; the first pair is not counted. `load` is the time
of loading, as `--json` reports it; `whole` is the whole process with one token, from start to end. Goal: drafts add at most 150
ms to either, as the median over pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec
from common import Made, arguments, keep, made_by, page_of
from measure.records import ModelFile, model_file
from measure.report import table

from pyspec.store.locate import resolve

DRAFTS = ("auto", "none")
HEAD = ("draft", "load, ms", "range", "whole, ms", "range")
OPTIONS = {"repeat": 30, "out": None}


class Start(msgspec.Struct):
    """Milliseconds of one process: loading, and all of it."""

    load: float
    whole: float


def start(model: Path, draft: str) -> Start:
    """Run one process that answers with one token."""
    words = ["Hello.", "-m", str(model), "--draft", draft, "-n", "1", "--json", "--no-log"]
    # .pyc files are kept, as for users
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    begin = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pyspec", "generate", *words], check=True, capture_output=True, env=kept
    )  # fmt: skip
    whole = 1e3 * (perf_counter() - begin)
    return Start(json.loads(done.stdout)["timings"]["load_ms"], round(whole, 2))


def measure(model: Path, repeat: int) -> dict[str, list[Start]]:
    """Starts by draft, where both starts of a pair have the same index; each is printed to stderr."""
    found: dict[str, list[Start]] = {draft: [] for draft in DRAFTS}
    for i in range(repeat + 1):
        for draft in DRAFTS if i % 2 else DRAFTS[::-1]:
            found[draft].append(start(model, draft))
            print(draft, found[draft][-1], file=sys.stderr, flush=True)
    return {draft: starts[1:] for draft, starts in found.items()}


class Loads(Made):
    """Every start, by draft."""

    target: ModelFile
    starts: dict[str, list[Start]]

    def added(self, what: str) -> float:
        """Milliseconds that drafts add to `load` or `whole`: the median over pairs."""
        pairs = zip(*(self.starts[draft] for draft in DRAFTS), strict=True)
        return median(getattr(with_, what) - getattr(without, what) for with_, without in pairs)

    def row(self, draft: str) -> list[str]:
        """Medians and ranges of a draft's starts."""
        cells = [draft]
        for what in ("load", "whole"):
            times = [getattr(one, what) for one in self.starts[draft]]
            cells += [f"{median(times):.0f}", f"{min(times):.0f} to {max(times):.0f}"]
        return cells

    def page(self) -> str:
        """The title, a description, the table, and what drafts add."""
        made = f"{self.made} Target {self.target.name}, sha256 {self.target.sha256}; {len(self.starts['auto'])} pairs."
        load, whole = self.added("load"), self.added("whole")
        said = f"Drafts add {load:.0f} ms to loading and {whole:.0f} ms to the whole process (medians of pairs)."
        about = (__doc__ or "").rpartition("\n\n")[2]
        rows = [self.row(draft) for draft in DRAFTS]
        return page_of("Starts with drafts", about, made, table(HEAD, rows), said)


def main(words: Sequence[str] | None = None) -> None:
    """Start in turns, and print the page; with --out, also store it."""
    options = arguments(__doc__, words, "model?", **OPTIONS)
    model = resolve(options.model)
    starts = measure(model, options.repeat)
    found = Loads(*made_by("load", words), model_file(model), starts)
    print(found.page())
    if options.out:
        keep(found, options.out / "load.json")


if __name__ == "__main__":
    main()
