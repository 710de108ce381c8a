"""Everyday prompts, one process each: `pyspec generate` with its defaults against `--draft none`, at temperature 0 and above.

Each line of PROMPTS (bench/everyday.txt by default, on which nothing was tuned) is a prompt. The processes of a pair run with and
without drafts, one after the other, and take turns in going first: an even --repeat is fair. With one seed a prompt has one text,
so both do the same work unless a near-tie makes them differ.

What earlier answers taught is kept in a cache of the bench's own. `--kept cold` takes it away before each answer, as it is when a
pair answers for the first time; `--kept warm` lets ten prompts of the other half teach it first, and every answer after them.

`times plain` compares tokens a second after the prompt, as `--json` reports them; `whole` does so for the whole answer, prompt
included. `said` is what the answers themselves say that drafts brought, where they say it. `drafting` and `rows` are what drafts
cost, as shares of the answer's time after the prompt: making them, and the time of the target's decodes beyond as many of the
plain answer. A prompt's figures are medians of its pairs'; the mean's interval is over prompts (95 %, Student's t). `--half 1` or
`2` takes every other prompt: what is tuned on one half is reported on the other. `--beside N` keeps N processes busy that do
nothing but arithmetic. Words after `--` go to both processes: with `-- --draft none` both do the same, and the table is the
measure's own scatter. With `--out FOLDER` the page and its figures are written there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import msgspec
from common import Made, arguments, half_width, keep, made_by, page_of
from measure.report import table

from pyspec.machine.files import cache_dir

PROMPTS = Path(__file__).with_suffix(".txt")
OPTIONS = {
    "temp": "0,0.8", "repeat": 4, "tokens": 128, "seed": 1, "half": 0, "kept": "warm", "beside": 0, "out": None,
}  # fmt: skip
WARMING = 10  # answers
HEAD = (
    "temperature", "prompt", "times plain", "said", "whole", "tokens a round", "drafting", "rows", "tok/s plain", "texts equal",
)  # fmt: skip
SLOW = 0.97
"""A prompt below this many times plain speed counts as slower."""
NEAR = 0.05
"""What answers say is right within this share."""


class Pair(msgspec.Struct):
    """An answer with drafts and one without: rates after the prompt and of the whole answer; whether the texts are equal."""

    drafted: float
    plain: float
    whole_drafted: float
    whole_plain: float
    tokens_a_round: float
    equal: bool
    said: float | None  # times plain as the drafted answer says it; None where it does not
    # shares of the drafted answer's time after the prompt: making drafts, and its decodes beyond as many of the plain answer
    drafting: float
    rows: float


def medians(pairs: Sequence[Pair]) -> dict[str, float]:
    """A prompt's figures."""
    of = {
        "times": [p.drafted / p.plain for p in pairs],
        "whole": [p.whole_drafted / p.whole_plain for p in pairs],
        "tokens": [p.tokens_a_round for p in pairs],
        "drafting": [100 * p.drafting for p in pairs],
        "rows": [100 * p.rows for p in pairs],
        "rate": [p.plain for p in pairs],
    }
    return {name: median(values) for name, values in of.items()}


def said(pairs: Sequence[Pair]) -> float | None:
    """What the answers to a prompt say in the median; None if fewer than half of them do."""
    known = [pair.said for pair in pairs if pair.said is not None]
    return median(known) if 2 * len(known) >= len(pairs) else None


class Everyday(Made, kw_only=True):
    """All pairs: by temperature, by prompt."""

    tokens: int
    pairs: dict[str, dict[str, list[Pair]]]

    def figures(self, temperature: str) -> dict[str, str]:
        """The figures of a temperature that a text may quote."""
        prompts = self.pairs[temperature].values()
        each = [medians(pairs) for pairs in prompts]
        means = {name: fmean(one[name] for one in each) for name in each[0]}
        ratios, middle = [one["times"] for one in each], means["times"]
        half = half_width(ratios) if len(ratios) > 1 else 0.0
        told = [one / ratio for one, ratio in zip(map(said, prompts), ratios) if one is not None]
        return {
            "mean": f"{middle:.2f}",
            "interval": f"{middle - half:.2f} to {middle + half:.2f}",
            "worst": f"{min(ratios):.2f}",
            "best": f"{max(ratios):.2f}",
            "slower": str(sum(ratio < SLOW for ratio in ratios)),
            "prompts": str(len(ratios)),
            "whole": f"{means['whole']:.2f}",
            "drafting": f"{means['drafting']:.1f} %",
            "rows": f"{means['rows']:.1f} %",
            "rate": f"{fmean(p.plain for pairs in prompts for p in pairs):.0f}",
            "near": f"{sum(abs(off - 1) < NEAR for off in told)} of {len(told)}" if told else "",
        }

    def page(self) -> str:
        """The title, how it was made, a description and the table."""
        made, how = f"{self.made} {self.tokens} tokens an answer at most.", __doc__ or ""
        about = how.partition("\n\n")[2].strip()
        return page_of("Everyday prompts, one process each", made, about, shown(self))


@contextmanager
def own_cache() -> Iterator[None]:
    """In the body, the cache is one that has the models of the user's and has learned nothing."""
    models = cache_dir() / "models"
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, PYSPEC_CACHE=folder):
        (Path(folder) / "models").mkdir()
        for path in models.iterdir():
            (Path(folder) / "models" / path.name).symlink_to(path.resolve())
        yield


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """In the body, this many processes compute beside those that are timed."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def forget() -> None:
    """Forget what answers taught about pairs of models."""
    for path in (cache_dir() / "facts").glob("*"):
        if "kinds" in path.read_text(encoding="utf-8"):
            path.unlink()


def answer(prompt: str, words: Sequence[str]) -> dict[str, Any]:
    """Run one process and return what it reports."""
    command = [sys.executable, "-m", "pyspec", "generate", prompt, "--json", "--no-log", *words]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def run_pair(prompt: str, words: Sequence[str], *, plain_first: bool) -> Pair:
    """Run both processes, one after the other."""
    sides = [[*words, "--draft", "none"], list(words)]
    order = 1 if plain_first else -1
    plain, drafted = [answer(prompt, side) for side in sides[::order]][::order]
    rates = [report["timings"]["tokens_per_second"] for report in (drafted, plain)]
    wholes = [_whole(report["timings"]) for report in (drafted, plain)]
    report, costs = drafted["speculation"], _costs(drafted, plain)
    equal = drafted["text"] == plain["text"]
    return Pair(*rates, *wholes, report["mean_length"], equal, report.get("times_plain"), *costs)


def _whole(timings: dict[str, float]) -> float:
    """Tokens a second of the whole answer."""
    total, prompt = timings["total_ms"], timings["prefill_ms"]
    return timings["tokens_per_second"] * (total - prompt) / total


def _costs(drafted: dict[str, Any], plain: dict[str, Any]) -> tuple[float, float]:
    """Shares of a drafted answer's time after the prompt: making drafts, and their rows in the target's decodes."""
    times, rounds = drafted["timings"], drafted["speculation"]["rounds"]
    decode = plain["timings"]["verify_ms"] / max(1, plain["speculation"]["rounds"])
    after = times["total_ms"] - times["prefill_ms"]
    return times["draft_ms"] / after, (times["verify_ms"] - rounds * decode) / after


def row(temperature: str, name: str, pairs: Sequence[Pair]) -> list[str]:
    """A prompt's line of the table."""
    told, of = said(pairs), medians(pairs)
    figures = (
        f"{of['times']:.3f}", "" if told is None else f"{told:.3f}", f"{of['whole']:.3f}", f"{of['tokens']:.2f}",
        f"{of['drafting']:.1f} %", f"{of['rows']:.1f} %", f"{of['rate']:.1f}",
    )  # fmt: skip
    return [temperature, name, *figures, f"{sum(pair.equal for pair in pairs)} of {len(pairs)}"]


def shown(found: Everyday) -> str:
    """The table; the last line of each temperature has the mean and the lowest of its prompts."""
    rows = []
    for temperature, prompts in found.pairs.items():
        rows += [row(temperature, name, pairs) for name, pairs in prompts.items()]
        f = found.figures(temperature)
        mean = f"{f['mean']} ({f['interval']}), lowest {f['worst']}, {f['slower']} under {SLOW}"
        near = f["near"] and f"{f['near']} within {100 * NEAR:.0f} %"
        costs = f["drafting"], f["rows"]
        rows.append([temperature, "mean", mean, near, f["whole"], "", *costs, "", ""])
    return table(HEAD, rows)


def measure(options: Any, more: Sequence[str], found: Everyday) -> None:
    """Run all pairs; print each prompt's line to stderr at once."""
    lines = Path(options.prompts or PROMPTS).read_text(encoding="utf-8").splitlines()
    numbered = [(f"{n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    chosen = numbered[options.half - 1 :: 2] if options.half else numbered
    for temperature in options.temp.split(","):
        prompts = found.pairs.setdefault(temperature, {})
        forget()
        if options.kept == "warm":
            others = [line for name, line in numbered if (name, line) not in chosen] or lines
            for prompt in others[:: max(1, len(others) // WARMING)][:WARMING]:
                answer(prompt, ["--temp", temperature, "-n", str(options.tokens), *more])
        for name, prompt in chosen:
            pairs = prompts.setdefault(name, [])
            for i in range(options.repeat):
                asked = ["--temp", temperature, "--seed", str(options.seed + i)]
                asked += ["-n", str(options.tokens), *more]
                if options.kept == "cold":
                    forget()
                pairs.append(run_pair(prompt, asked, plain_first=i % 2 == 0))
            print(*row(temperature, name, pairs), file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    given = list(sys.argv[1:] if words is None else words)
    at = given.index("--") if "--" in given else len(given)
    options = arguments(__doc__, given[:at], "prompts?", **OPTIONS)
    found = Everyday(**made_by("everyday", given), tokens=options.tokens, pairs={})
    with own_cache(), busy(options.beside):
        measure(options, given[at + 1 :], found)
    print(shown(found))
    if options.out:
        keep(found, options.out / "everyday.json")


if __name__ == "__main__":
    main()
