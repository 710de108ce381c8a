"""Answers next to busy programs: a number of threads that adapts, against a fixed one.

    python bench/busy.py [MODEL] [--others 0,1,2] [--repeat 5] [--out FOLDER]

The table's first column is the number of background processes, which do nothing but arithmetic. `pyspec generate` with its
defaults (adapting) and with -t at its full number (fixed) answer one after the other, each in its own process with the same seed;
they take turns in going first. Speeds of processes differ by 8 % from one to the next. Rates are tokens a second after the
prompt, medians over the repeats; `times` is the median of the pairs' ratios. With `--duty 0.3` the background processes work 30
of every 100 ms.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import msgspec
from common import Dated, arguments, dated, keep, page_of
from everyday import answer
from measure.report import table

from pyspec.store.machine import default_threads

PROMPT = "Explain in a few sentences how a heat pump works."
OPTIONS = {
    "others": "0,1,2",
    "duty": 1.0,
    "repeat": 5,
    "tokens": 96,
    "temp": 0.8,
    "draft": "none,auto",
    "out": None,
}
HEAD = (
    "programs beside",
    "drafts",
    "threads that give way, tok/s",
    "as many as cores, tok/s",
    "times",
)
WORK = """
import sys, time
duty = float(sys.argv[1])
while True:
    end = time.perf_counter() + 0.1 * duty
    while time.perf_counter() < end:
        pass
    time.sleep(0.1 * (1.0 - duty))
"""


class Rates(msgspec.Struct):
    """Tokens a second of pairs of answers: with a number of threads that adapts, and with a fixed one."""

    others: int
    draft: str
    adaptive: list[float] = []
    fixed: list[float] = []

    @property
    def times(self) -> float:
        """The median of the pairs' ratios."""
        return median(a / b for a, b in zip(self.adaptive, self.fixed))


class BusyRun(Dated):
    """All results of one run."""

    rates: list[Rates]

    def page(self) -> str:
        """The title, how it was made, a description and the table."""
        how = (__doc__ or "").split("\n\n", 2)[2].strip()
        return page_of("Beside other programs", f"{self.made}.", how, shown(self.rates))


def start(duty: float) -> subprocess.Popen[bytes]:
    """Start a busy program."""
    return subprocess.Popen([sys.executable, "-c", WORK, str(duty)])


@contextmanager
def beside(n: int, duty: float) -> Iterator[None]:
    """Run `n` busy programs in the meantime."""
    work = [start(duty) for _ in range(n)]
    try:
        yield
    finally:
        for process in work:
            process.kill()
            process.wait()


def measure(rates: Rates, asked: Sequence[str], repeat: int) -> None:
    """Answer in pairs, whose sides take turns in going first."""
    words = [*asked, "--draft", rates.draft]
    sides = [(rates.adaptive, words), (rates.fixed, [*words, "-t", str(default_threads())])]
    for i in range(repeat):
        for found, side in sides[:: 1 if i % 2 else -1]:
            found.append(answer(PROMPT, side)["timings"]["tokens_per_second"])


def shown(rates: Sequence[Rates]) -> str:
    """The table."""
    rows = [
        [
            str(r.others),
            r.draft,
            f"{median(r.adaptive):.1f}",
            f"{median(r.fixed):.1f}",
            f"{r.times:.2f}",
        ]
        for r in rates
    ]
    return table(HEAD, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    given = list(sys.argv[1:] if words is None else words)
    options = arguments(__doc__, given, "model?", **OPTIONS)
    asked = ["-n", str(options.tokens), "--temp", str(options.temp), "--seed", "3"]
    asked += ["-m", options.model] if options.model else []
    run = BusyRun(*dated("busy", given), [])
    for others in map(int, options.others.split(",")):
        with beside(others, options.duty):
            for draft in options.draft.split(","):
                run.rates.append(Rates(others, draft))
                measure(run.rates[-1], asked, options.repeat)
                print(shown(run.rates[-1:]), file=sys.stderr, flush=True)
    print(shown(run.rates))
    if options.out:
        keep(run, options.out / "busy.json")


if __name__ == "__main__":
    main()
