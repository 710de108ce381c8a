"""How long a model takes to load with what drafts for it: milliseconds, each draft in processes of its own.

    python bench/load.py [MODEL] [--drafts none,auto] [--runs 7] [--threads N]

MODEL is a file or a name; the default target without one. The drafts take turns, after one round that is not counted. A
process imports everything first; `ms` is the median of what `SpeculativeLlama(MODEL, draft=DRAFT)` took, `over` what it took
more than the first one. Drafts may take 200 ms over `none`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from common import arguments

from pyspec.measure.report import table
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


def main(words: Sequence[str] | None = None) -> None:
    """Time each draft, and print a table."""
    options = arguments(__doc__, words, "model?", drafts="none,auto", runs=7, threads=0)
    model, drafts = options.model or str(resolve()), options.drafts.split(",")
    rounds = [
        [load_ms(model, draft, options.threads) for draft in drafts]
        for _ in range(options.runs + 1)
    ]
    medians = [median(times) for times in zip(*rounds[1:], strict=True)]
    print(
        table(
            ["draft", "ms", "over"],
            [
                [d, f"{ms:.0f}", f"{ms - medians[0]:.0f}"]
                for d, ms in zip(drafts, medians, strict=True)
            ],
        )
    )


if __name__ == "__main__":
    main()
