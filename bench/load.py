"""How long a model takes to load with what drafts for it: milliseconds, each draft in processes of its own.

    python bench/load.py [MODEL] [--drafts none,auto] [--runs 7] [--threads N]

The drafts take turns, after one round that is not counted. A process imports everything first; `ms` is the median of what
`SpeculativeLlama(MODEL, draft=DRAFT)` took, `over` what it took more than the first one. Drafts may take 200 ms over `none`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence

from pyspec.store import resolve

_ONE = """
import sys
from pyspec import SpeculativeLlama
model, draft, threads = sys.argv[1:]
llm = SpeculativeLlama(model, draft=draft, n_ctx=4096, n_threads=int(threads) or None)
print(llm.load_ms)
"""


def load_ms(model: str, draft: str, threads: int) -> float:
    """One loading in a new process, milliseconds."""
    command = [sys.executable, "-c", _ONE, model, draft, str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Time each draft, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", help="a file or a name; without it the default target")
    parser.add_argument("--drafts", default="none,auto", help="comma-separated")
    parser.add_argument("--runs", type=int, default=7, help="loadings a median is taken of")
    parser.add_argument(
        "--threads", type=int, default=0, help="0 for llama-cpp-python's own choice"
    )
    options = parser.parse_args(arguments)
    model = options.model or str(resolve())
    drafts = options.drafts.split(",")
    rounds = [
        [load_ms(model, draft, options.threads) for draft in drafts]
        for _ in range(options.runs + 1)
    ]
    medians = [statistics.median(times) for times in zip(*rounds[1:], strict=True)]
    print("| draft | ms | over |\n| --- | --- | --- |")
    for draft, ms in zip(drafts, medians, strict=True):
        print(f"| {draft} | {ms:.0f} | {ms - medians[0]:.0f} |")


if __name__ == "__main__":
    main()
