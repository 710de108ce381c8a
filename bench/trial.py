"""What the trial of files adds to their first load, and to later ones: seconds.

Each load is a separate process; those of one repetition share a new cache: the first finds no verdict, the second finds them.
`trial` is the time spent waiting for child processes; `load` is the whole time of making a `SpeculativeLlama`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from statistics import median

from common import arguments, in_turns

from pyspec.measure.report import table
from pyspec.store.locate import resolve

LOAD = """
import json, sys
from time import perf_counter
from pyspec.engine import pair
from pyspec.store import check
spent, run = [], check.run_child
def timed(*arguments, **options):
    start = perf_counter()
    try:
        return run(*arguments, **options)
    finally:
        spent.append(perf_counter() - start)
check.run_child = pair.run_child = timed
from pyspec.llama.speculative import SpeculativeLlama
options = json.loads(sys.argv[1])
start = perf_counter()
llm = SpeculativeLlama(**options)
print(json.dumps({"load": perf_counter() - start, "trial": sum(spent), "children": len(spent)}))
llm.close()
"""


def load(options: dict[str, object], cache: str) -> dict[str, float]:
    """Run one load in a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps(options)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYSPEC_CACHE": cache},
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Load a pair repeatedly and print a Markdown table."""
    options = arguments(__doc__, words, "model", "draft?", threads=2, repeat=5, ctx=4096)
    pair = {"model_path": str(resolve(options.model)), "draft": options.draft or "auto"}
    pair |= {"n_threads": options.threads, "n_ctx": options.ctx}
    with tempfile.TemporaryDirectory() as folder:
        count = 0

        def measure(which: str) -> dict[str, float]:
            nonlocal count
            count += which == "first"
            return load(pair, f"{folder}/{count}")

        found = in_turns(("first", "second"), options.repeat, measure)
    rows = [
        [which, *(f"{median(run[key] for run in runs):.2f}" for key in ("load", "trial")),
         f"{max(run['trial'] for run in runs):.2f}", f"{runs[0]['children']:.0f}"]
        for which, runs in found.items()
    ]  # fmt: skip
    print(table(["load", "load, s", "trial, s", "longest trial, s", "children"], rows))


if __name__ == "__main__":
    main()
