"""Everyday prompts in a process each: `pyspec generate` as it comes against `--draft none`, at temperature 0 and above.

A line of PROMPTS (bench/everyday.txt if not given) is a prompt. Each pair of processes is run with drafts and without, one after
the other, and which comes first takes turns; a seed and a prompt have one text, so both do the same work where no near-tie parts
them. Rates are tokens a second after the prompt, as `--json` reports them; a prompt's figure is the median of its pairs' ratios.
`--half 1` or `2` takes every other prompt alone: what is tuned on one is reported on the other. Words behind `--` go to both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from common import arguments

from pyspec.measure.report import table

PROMPTS = Path(__file__).with_suffix(".txt")
OPTIONS = {"temp": "0,0.8", "repeat": 5, "tokens": 128, "seed": 1, "half": 0}
HEAD = ("temperature", "prompt", "times plain", "tokens a round", "tok/s plain", "texts equal")


class Pair(NamedTuple):
    """One answer with drafts and one without: rates, tokens a round, and whether the texts are one."""

    drafted: float
    plain: float
    tokens_a_round: float
    equal: bool


def answer(prompt: str, words: Sequence[str]) -> dict[str, Any]:
    """What one process reports."""
    command = [sys.executable, "-m", "pyspec", "generate", prompt, "--json", "--no-log", *words]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def run_pair(prompt: str, words: Sequence[str], *, plain_first: bool) -> Pair:
    """Both processes, one after the other."""
    sides = [[*words, "--draft", "none"], list(words)]
    plain, drafted = (
        [answer(prompt, side) for side in sides]
        if plain_first
        else [answer(prompt, side) for side in sides[::-1]][::-1]
    )
    rates = [report["timings"]["tokens_per_second"] for report in (drafted, plain)]
    length = drafted["speculation"]["mean_length"]
    return Pair(*rates, length, drafted["text"] == plain["text"])


def row(temperature: str, name: str, pairs: Sequence[Pair]) -> tuple[float, list[str]]:
    """A prompt's figure, and its line of the table."""
    ratio = median(pair.drafted / pair.plain for pair in pairs)
    length = median(pair.tokens_a_round for pair in pairs)
    equal = sum(pair.equal for pair in pairs)
    cells = [f"{ratio:.3f}", f"{length:.2f}", f"{median(pair.plain for pair in pairs):.1f}"]
    return ratio, [temperature, name, *cells, f"{equal} of {len(pairs)}"]


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; the last line of each temperature has the mean and the lowest of its prompts."""
    given = list(sys.argv[1:] if words is None else words)
    at = given.index("--") if "--" in given else len(given)
    options = arguments(__doc__, given[:at], "prompts?", **OPTIONS)
    lines = Path(options.prompts or PROMPTS).read_text(encoding="utf-8").splitlines()
    numbered = [(f"{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    chosen = numbered[options.half - 1 :: 2] if options.half else numbered
    rows: list[list[str]] = []
    for temperature in options.temp.split(","):
        ratios = []
        for name, prompt in chosen:
            pairs = []
            for i in range(options.repeat):
                asked = ["--temp", temperature, "--seed", str(options.seed + i)]
                asked += ["-n", str(options.tokens), *given[at + 1 :]]
                pairs.append(run_pair(prompt, asked, plain_first=i % 2 == 0))
            ratio, cells = row(temperature, name, pairs)
            ratios.append(ratio)
            rows.append(cells)
            print(*cells, file=sys.stderr, flush=True)
        under = sum(ratio < 0.97 for ratio in ratios)
        said = f"{mean(ratios):.3f}, lowest {min(ratios):.3f}, {under} under 0.97"
        rows.append([temperature, "mean", said, "", "", ""])
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
