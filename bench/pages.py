"""Every page and picture under bench/results, and the README's numbers, made from the results once more.

    python bench/pages.py    in the repository's root

The README's tables stand between `<!-- results -->` and `<!-- /results -->`, and the same with rules. A number in its text is
written `<!--= default/strict/mean -->1.15<!--/-->`: folder, mode and figure. Figures of `pyspec bench` are mean (geometric,
over categories, times plain), best, worst, rate (tokens a second) and first (ms); what `pyspec quality` found and batches are
in the tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from batch import BatchResults
from common import Comparison, write_page
from serve import ServeResults

from pyspec.errors import InputError
from pyspec.measure import quality, report
from pyspec.measure.quality import DISTINCT, NATS, QualityResults
from pyspec.measure.records import TOTAL, Summary
from pyspec.measure.report import Results, table

T = TypeVar("T")
RULES = (
    "quality-eagle3", "quality-eagle3-t08", "quality-good", "quality-good-t08", "quality-poor", "quality-gemma"
)  # fmt: skip
SHOWN = (
    "default", "q8_0", "q4_k_m", "stretched-good-bf16", "stretched-good-q4_k_m", "stretched-poor-q4_k_m", "copying"
)  # fmt: skip
BATCH = "batch/bf16.json"
HEAD = ["", "plain, tokens/s", "strict", "worst kind", "margin", "best other program"]
RULES_HEAD = ["The margin rule", "more tokens a verify", "nats a token", "distinct-4", "looped answers", "worse in"]  # fmt: skip
_NUMBER = re.compile(r"<!--= ([^ ]+) -->.*?<!--/-->", re.DOTALL)


def read(folder: Path, kind: type[T], names: str) -> dict[str, T]:
    """Results of a kind by the names of their folders, or by their own where a folder has several."""
    found = {}
    for path in sorted(folder.glob(names)):
        name = path.stem if issubclass(kind, Comparison) else path.parent.name
        try:
            found[name] = msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}: {error}") from None
    return found


runs = partial(read, kind=Results, names="*/results.json")
rules = partial(read, kind=QualityResults, names="*/quality.json")


def redraw(folder: Path) -> None:
    """Write all pages and pictures anew."""
    for name, results in runs(folder).items():
        report.save(results, folder / name)
    for name, found in rules(folder).items():
        quality.save_quality(found, folder / name)
    for name, kind in (("batch", BatchResults), ("serve", ServeResults)):
        if (folder / name).is_dir():
            write_page(folder / name, kind)


def readme_table(folder: Path) -> str:
    """Six to eight rows: what is measured in SHOWN and BATCH, as far as it is there."""
    found, batches = runs(folder), read(folder, BatchResults, BATCH)
    rows = [_row(name, found[name]) for name in SHOWN if name in found]
    return table(HEAD, [*rows, *map(_batch_row, batches.values())])


def _link(title: str, name: str) -> str:
    return f"[{title}](bench/results/{name}/README.md)"


def _row(name: str, results: Results) -> list[str]:
    modes = {s.who: s for s in results.summaries}
    own = modes.get("strict") or modes["lookup+strict"]
    plain = modes["plain"].speeds[TOTAL].rate
    margin = f"{modes['margin'].geomean:.2f}" if "margin" in modes else "-"
    low, kind = _ups(own)[0]
    return [_link(results.title, name), f"{plain:.0f}", f"**{own.geomean:.2f}**", f"{low:.2f} {kind}",
            margin, _best_peer(results.summaries)]  # fmt: skip


def _ups(summary: Summary) -> list[tuple[float, str]]:
    """Speed-ups by category, the worst first."""
    return sorted((s.speed_up, name) for name, s in summary.speeds.items() if name != TOTAL)


def _best_peer(summaries: Sequence[Summary]) -> str:
    best = max((s for s in summaries if s.peer), key=lambda s: s.geomean, default=None)
    return f"{best.geomean:.2f} {best.who}" if best else "-"


def _batch_row(found: BatchResults) -> list[str]:
    plain, own, peer = (found.find(name) for name in ("plain:1", "speculative:16", "server"))
    if plain is None or own is None:
        raise InputError(f"{found.title} has no plain:1 or no speculative:16")
    other = f"{peer['rate'] / plain['rate']:.2f} llama-server, 16 clients" if peer else "-"
    gain = f"**{own['rate'] / plain['rate']:.2f}**"
    title = _link(f"{found.title}, 16 at once", "batch")
    return [title, f"{plain['rate']:.0f}", gain, "-", "-", other]


def rules_table(folder: Path) -> str:
    """A row for each page of RULES that is there: the margin rule at its defaults against strict."""
    found = rules(folder)
    return table(RULES_HEAD, [_rules_row(name, found[name]) for name in RULES if name in found])


def _rules_row(name: str, found: QualityResults) -> list[str]:
    figures = {each.who: each for each in found.figures}
    strict, margin = figures["strict+fixed:4"], figures["margin+fixed:4"]
    about = found.title.removeprefix("What the margin rule costs ").partition(":")[0]
    nats, distinct = (f"{margin.measures[key].over.mean:+.3f}" for key in (NATS, DISTINCT))
    looped = f"{margin.looped} of {margin.answers}, strict {strict.looped}"
    gain, worse = f"{100 * (margin.gain - 1):+.0f} %", ", ".join(margin.worse) or "-"
    return [_link(about, name), gain, nats, distinct, looped, worse]


def numbers(folder: Path) -> dict[str, str]:
    """Every number that the README may quote, by its name."""
    out: dict[str, str] = {}
    for name, results in runs(folder).items():
        for s in results.summaries:
            ups = _ups(s)
            figures = {"mean": s.geomean, "worst": ups[0][0], "best": ups[-1][0]}
            whole = {"rate": s.speeds[TOTAL].rate, "first": s.first_ms}
            out |= {f"{name}/{s.who}/{key}": f"{value:.2f}" for key, value in figures.items()}
            out |= {f"{name}/{s.who}/{key}": f"{value:.0f}" for key, value in whole.items()}
    return out


def filled(text: str, folder: Path) -> str:
    """A README with its tables and its numbers. Raises InputError for a name that is none, and without marks."""
    known = numbers(folder)

    def number(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise InputError(f"the README quotes {match[1]}, and no results have it")
        return f"<!--= {match[1]} -->{known[match[1]]}<!--/-->"

    text = _put(text, "results", readme_table(folder))
    if rules(folder):
        text = _put(text, "rules", rules_table(folder))
    return _NUMBER.sub(number, text)


def _put(text: str, name: str, found: str) -> str:
    """A table between its marks."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, first, rest = text.partition(start)
    _, second, after = rest.partition(end)
    if not first or not second:
        raise InputError(f"the README has no {start} ... {end}")
    return f"{before}{start}\n{found}\n{end}{after}"


def main() -> None:
    """Make everything anew."""
    readme, folder = Path("README.md"), Path("bench/results")
    text = filled(readme.read_text(encoding="utf-8"), folder)
    redraw(folder)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
