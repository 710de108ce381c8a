"""Every page and picture under bench/results, and the README's numbers, made from the results once more.

    python bench/pages.py             in the repository's root
    python bench/pages.py --check     writes nothing; exit code 1 where the README would change

The README's table stands between `<!-- results -->` and `<!-- /results -->`. A number in its text is written
`<!--= default/strict/mean -->1.15<!--/-->`: folder, mode and figure. Figures of `pyspec bench` are mean (geometric,
over categories, times plain), best, worst, rate (tokens a second) and first (ms); of a batch, rate and gain (times
plain:1), with the file's name as in batch/bf16/server/gain; of `pyspec quality`, length, gain, relaxed, looped, answers,
looped_p, nats and distinct.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from batch import BatchResults
from common import write_page
from serve import ServeResults

from pyspec.errors import InputError
from pyspec.measure import quality_report, report
from pyspec.measure.quality import DISTINCT, NATS, QualityResults
from pyspec.measure.report import Results, table
from pyspec.measure.stats import TOTAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.measure.stats import Summary

START, END = "<!-- results -->", "<!-- /results -->"
SHOWN = (
    "default", "q8_0", "q4_k_m", "stretched-good-bf16", "stretched-good-q4_k_m", "stretched-poor-q4_k_m", "copying"
)  # fmt: skip
BATCHES = ("bf16",)
HEAD = ["", "plain, tokens/s", "strict", "worst kind", "margin", "best other program"]
_NUMBER = re.compile(r"<!--= ([^ ]+) -->.*?<!--/-->", re.DOTALL)


def read(folder: Path) -> tuple[dict[str, Results], dict[str, QualityResults]]:
    """Results of `pyspec bench` and of `pyspec quality` by the names of their folders."""
    runs = {p.parent.name: _decoded(p, Results) for p in sorted(folder.glob("*/results.json"))}
    rules = {
        p.parent.name: _decoded(p, QualityResults) for p in sorted(folder.glob("*/quality.json"))
    }
    return runs, rules


def _decoded(path: Path, kind: type) -> object:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path}: {error}") from None


def redraw(folder: Path) -> None:
    """Write all pages and pictures anew."""
    runs, rules = read(folder)
    for name, results in runs.items():
        report.save(results, folder / name)
    for name, found in rules.items():
        quality_report.save_quality(found, folder / name)
    for name, kind in (("batch", BatchResults), ("serve", ServeResults)):
        if (folder / name).is_dir():
            write_page(folder / name, kind)


def readme_table(folder: Path, link: str = "bench/results") -> str:
    """Six to eight rows: what is measured in SHOWN and BATCHES, as far as it is there."""
    runs, _ = read(folder)
    rows = [_row(runs[name], f"{link}/{name}/README.md") for name in SHOWN if name in runs]
    batches = {path.stem: path for path in (folder / "batch").glob("*.json")}
    rows += [
        _batch_row(_decoded(batches[name], BatchResults), f"{link}/batch/README.md")
        for name in BATCHES
        if name in batches
    ]
    return table(HEAD, rows)


def _row(results: Results, link: str) -> list[str]:
    modes = {s.who: s for s in results.summaries}
    own = modes.get("strict") or modes["lookup+strict"]
    plain = modes["plain"].speeds[TOTAL].rate
    margin = f"{modes['margin'].geomean:.2f}" if "margin" in modes else "-"
    name, low = _ends(own)[0]
    return [f"[{results.title}]({link})", f"{plain:.0f}", f"**{own.geomean:.2f}**", f"{low:.2f} {name}",
            margin, _best_peer(results.summaries)]  # fmt: skip


def _ends(summary: Summary) -> list[tuple[str, float]]:
    """Worst and best category, with their speed-ups."""
    ups = sorted((s.speed_up, name) for name, s in summary.speeds.items() if name != TOTAL)
    return [(name, up) for up, name in (ups[0], ups[-1])]


def _best_peer(summaries: Sequence[Summary]) -> str:
    best = max((s for s in summaries if s.peer), key=lambda s: s.geomean, default=None)
    return f"{best.geomean:.2f} {best.who}" if best else "-"


def _batch_row(found: BatchResults, link: str) -> list[str]:
    plain, own, peer = (found.find(name) for name in ("plain:1", "speculative:16", "server"))
    if plain is None or own is None:
        raise InputError(f"{found.title} has no plain:1 or no speculative:16")
    other = f"{peer.rate / plain.rate:.2f} llama-server, 16 clients" if peer else "-"
    gain = f"**{own.rate / plain.rate:.2f}**"
    return [f"[{found.title}, 16 at once]({link})", f"{plain.rate:.0f}", gain, "-", "-", other]


def numbers(folder: Path) -> dict[str, str]:
    """Every number that the README may quote, by its name."""
    runs, rules = read(folder)
    out = {}
    for name, results in runs.items():
        for s in results.summaries:
            ends = _ends(s)
            figures = {"mean": s.geomean, "worst": ends[0][1], "best": ends[1][1]}
            out |= {f"{name}/{s.who}/{key}": f"{value:.2f}" for key, value in figures.items()}
            out |= {
                f"{name}/{s.who}/rate": f"{s.speeds[TOTAL].rate:.0f}",
                f"{name}/{s.who}/first": f"{s.first_ms:.0f}",
            }
    for name, found in rules.items():
        for f in found.figures:
            out |= {
                f"{name}/{f.who}/length": f"{f.length:.2f}",
                f"{name}/{f.who}/gain": f"{100 * (f.gain - 1):+.0f} %",
                f"{name}/{f.who}/relaxed": f"{100 * f.relaxed:.1f} %",
                f"{name}/{f.who}/looped": str(f.looped),
                f"{name}/{f.who}/answers": str(f.answers),
                f"{name}/{f.who}/looped_p": f"{f.looped_p:.2f}",
                f"{name}/{f.who}/nats": f"{f.measures[NATS].over.mean:+.3f}",
                f"{name}/{f.who}/distinct": f"{f.measures[DISTINCT].over.mean:+.3f}",
            }
    for path in sorted((folder / "batch").glob("*.json")):
        found_batch = _decoded(path, BatchResults)
        alone = found_batch.find("plain:1")
        for one in found_batch.contenders:
            out[f"batch/{path.stem}/{one.name}/rate"] = f"{one.rate:.0f}"
            if alone:
                out[f"batch/{path.stem}/{one.name}/gain"] = f"{one.rate / alone.rate:.2f}"
    return out


def filled(text: str, folder: Path) -> str:
    """A README with its table and its numbers. Raises InputError for a name that is none, and without the marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise InputError(f"the README has no {START} ... {END}")
    known = numbers(folder)

    def number(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise InputError(f"the README quotes {match[1]}, and no results have it")
        return f"<!--= {match[1]} -->{known[match[1]]}<!--/-->"

    text = f"{before}{START}\n{readme_table(folder)}\n{END}{after}"
    return _NUMBER.sub(number, text)


def main(arguments: Sequence[str]) -> int:
    """Make everything anew, or check; the exit code."""
    readme, folder = Path("README.md"), Path("bench/results")
    text = readme.read_text(encoding="utf-8")
    new = filled(text, folder)
    if "--check" in arguments:
        return int(new != text)
    redraw(folder)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
