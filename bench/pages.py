"""Regenerates every page and picture under bench/results, and the README's numbers, from the stored results.

    python bench/pages.py    in the repository's root

A table is between `<!-- rules -->` and `<!-- /rules -->` (METHODS.md); in models/README.md it is drafts. A number in a text is
written `<!--= default/strict/mean -->1.15<!--/-->`: folder, mode and figure. The figures of compare.py are mean (geometric, over
categories, times plain), interval (the mean with its own), worst, over-strict (times strict verification, over questions) and
rate (tokens a second), and without a mode cost/N (a decode of N rows, in decodes of one) and parted (answers that
are not plain decoding's); of `bench/batch.py` each contender, times plain one by one; of quality.py nats and distinct over the
control, with intervals, length (tokens a verify), gain (over the control's, %) and drawn (over greedy drafts, %). All other
figures are in the tables. Intervals of speeds are 95 %, by Student's t of logarithms: over questions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from math import exp
from operator import sub
from pathlib import Path

import card.page as card
import msgspec
from attention import Attention
from batch import BatchResults
from common import Comparison, Made, T, arguments, half_width, times, write_page
from everyday import Everyday
from long import Long
from measure import quality_page, report
from measure.quality import DISTINCT, NATS, ROUGE, QualityResults
from measure.report import Results, table
from measure.speeds import TOTAL, Summary
from pool import PoolResults
from returning import Returning
from serve import ServeResults

from pyspec.errors import InputError

RULES = ("quality-eagle3", "quality-eagle3-t08", "quality-good", "quality-good-t08", "quality-poor", "quality-gemma")  # fmt: skip
DRAFTS_HEAD = ["drafter", "all", "strict K=4, 8", "margin share", "margin K=4, 8", "steps 1, 2, 3, 4"]  # fmt: skip
RULES_HEAD = ["The margin rule", "more tokens a verify", "nats a token", "distinct-4", "looped answers", "worse in"]  # fmt: skip
PAGES = ("README.md", "METHODS.md", "DEVICES.md", "ARCHITECTURE.md", "models/README.md")
"""Texts whose figures are all made from results, or are not measurements (`tests/bench/test_claims.py`)."""
CARDS = ("models/smollm2-eagle3.md",)
"""Texts that also contain many numbers that are not measurements; their quoted results are filled in the same way."""

FEWEST = 3
"""Questions that an interval needs."""

_NUMBER = re.compile(r"<!--= ([^ ]+) -->.*?<!--/-->", re.DOTALL)


def read(folder: Path, kind: type[T], names: str) -> dict[str, T]:
    """Read results of a kind, by the names of their folders, or by file name if a folder has several."""
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

STORED: dict[str, type[Made]] = {
    **dict.fromkeys(("attention", "attention-avx2", "attention-avx512"), Attention), "batch": BatchResults,
    **dict.fromkeys(("everyday", "everyday-alike", "everyday-epyc"), Everyday), "long": Long, "pool": PoolResults,
    "returning": Returning, "serve": ServeResults,
}  # fmt: skip
"""The kinds of other results, by folder."""


def redraw(folder: Path) -> None:
    """Regenerate all pages and pictures."""
    for name, results in runs(folder).items():
        report.save_page(results, folder / name)
    for name, found in rules(folder).items():
        quality_page.save_quality(found, folder / name)
    for name, kind in STORED.items():
        if (folder / name).is_dir():
            write_page(folder / name, kind)
    if (folder / "card").is_dir():
        card.write(folder / "card")


def _interval(summary: Summary) -> str:
    """The interval of the mean over questions; empty if too few are known."""
    logs = summary.logs
    if len(logs) < FEWEST:
        return ""
    low, high = (summary.geomean * exp(side * half_width(logs)) for side in (-1.0, 1.0))
    return f" ({low:.2f} to {high:.2f}, {len(logs)} questions)"


def rules_table(folder: Path) -> str:
    """A row for each existing page of RULES: the margin rule at its defaults against strict."""
    found = rules(folder)
    return table(RULES_HEAD, [_rules_row(name, found[name]) for name in RULES if name in found])


def _rules_row(name: str, found: QualityResults) -> list[str]:
    figures = {each.who: each for each in found.figures}
    strict, margin = figures["strict+fixed:4"], figures["margin+fixed:4"]
    about = found.title.removeprefix("What the margin rule costs ").partition(":")[0]
    nats, distinct = (str(margin.measures[key].over) for key in (NATS, DISTINCT))
    looped = f"{margin.looped} of {margin.answers}, strict {strict.looped}"
    gain, worse = f"{100 * (margin.gain - 1):+.0f} %", ", ".join(margin.worse) or "-"
    if ROUGE not in margin.measures:
        worse += f" ({ROUGE} not measured)"
    return [f"[{about}](bench/results/{name}/README.md)", gain, nats, distinct, looped, worse]


def drafts_table(folder: Path) -> str:
    """How often each drafter predicts the target's choice; empty if none was measured."""
    path, rows = folder / "drafts" / "drafts.json", []
    told = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    for name, found in told.get("drafters", told).items():  # older files have no commit
        lengths, steps = found["lengths"], ", ".join(f"{share:.3f}" for share in found["by_step"])
        strict, margin = (
            f"{lengths[f'{rule}-4']:.2f}, {lengths[f'{rule}-8']:.2f}"
            for rule in ("strict", "margin")
        )
        shares = [f"{found[key]:.3f}" for key in ("share", "margin_share")]
        rows.append([name, shares[0], strict, shares[1], margin, steps])
    return table(DRAFTS_HEAD, rows) if rows else ""


def numbers(folder: Path) -> dict[str, str]:
    """Every number that a text may quote, by its name."""
    out: dict[str, str] = {}
    for name, results in runs(folder).items():
        for s in results.summaries:
            worst = min(speed.speed_up for kind, speed in s.speeds.items() if kind != TOTAL)
            figures = {"mean": s.geomean, "worst": worst}
            out |= {f"{name}/{s.who}/{key}": f"{value:.2f}" for key, value in figures.items()}
            out[f"{name}/{s.who}/rate"] = f"{s.speeds[TOTAL].rate:.0f}"
            out[f"{name}/{s.who}/interval"] = f"{s.geomean:.2f}{_interval(s)}"
        out |= _over_strict(name, results)
        out |= _rows_and_rounding(name, results)
    for name, found in rules(folder).items():
        out |= _drawn(name, found)
        for figures in found.figures:
            who = f"{name}/{figures.who}"
            out |= {
                f"{who}/nats": str(figures.measures[NATS].over),
                f"{who}/distinct": str(figures.measures[DISTINCT].over),
                f"{who}/gain": f"{100 * (figures.gain - 1):+.0f}",
                f"{who}/answers": str(figures.answers),
                f"{who}/length": f"{figures.length:.2f}",
            }
    for name, pairs in read(folder, Everyday, "*/everyday.json").items():
        for temp in pairs.pairs:
            out |= {f"{name}/{temp}/{key}": told for key, told in pairs.figures(temp).items()}
    out |= _batches(folder)
    for path in sorted((Path(__file__).parents[1] / "models").glob("*.gguf")):
        out[f"files/{path.name}"] = f"{path.stat().st_size / 1e6:.1f}"
    return out


def _over_strict(name: str, results: Results) -> dict[str, str]:
    """Speeds over strict verification's, with intervals, where the speeds of questions are known."""
    logs = {s.who: s.logs for s in results.summaries if not s.peer and len(s.logs) >= FEWEST}
    own = logs.get("strict", [])
    over = {who: [*map(sub, each, own)] for who, each in logs.items() if own}
    return {f"{name}/{who}/over-strict": times(each) for who, each in over.items()}


def _drawn(name: str, found: QualityResults) -> dict[str, str]:
    """Gain in tokens a verify of sampled drafts over greedy drafts on the same questions, %."""
    by_name = {each.who: each for each in found.figures}
    pairs = {who: (by_name.get(who.removesuffix("+apart")), one) for who, one in by_name.items()}
    return {
        f"{name}/{who}/drawn": f"{100 * (one.length / apart.length - 1):+.0f}"
        for who, (one, apart) in pairs.items()
        if one is not None and one is not apart and one.answers == apart.answers
    }


def _rows_and_rounding(name: str, results: Results) -> dict[str, str]:
    curve = results.drawn.curves.get("target", [])
    own = {s.who: s.questions for s in results.summaries if not s.peer and s.who != "plain"}
    parted = sum(each.who in own for each in results.differences)
    costs = {f"{name}/cost/{n}": f"{curve[n] / curve[1]:.2f}" for n in (8, 16) if n < len(curve)}
    return costs | {f"{name}/parted": f"{parted} of {sum(own.values()) * results.repeat}"}


def _batches(folder: Path) -> dict[str, str]:
    """Speeds, times plain decoding of one text after the other, batching included."""
    out: dict[str, str] = {}
    for name, found in read(folder, BatchResults, "batch/*.json").items():
        if (alone := found.find("plain:1")) is not None:
            own = {one["name"]: one["rate"] / alone["rate"] for one in found.contenders}
            out |= {f"batch/{name}/{who}": f"{rate:.2f}" for who, rate in own.items()}
    return out


def filled(text: str, folder: Path) -> str:
    """Fill in a page's tables and numbers. Raises InputError for an unknown name or a missing mark."""
    known = numbers(folder)

    def number(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise InputError(f"a page quotes {match[1]}, and no results have it")
        return f"<!--= {match[1]} -->{known[match[1]]}<!--/-->"

    for name, made in (("rules", rules_table), ("drafts", drafts_table)):
        if f"<!-- {name} -->" in text:
            text = _put(text, name, made(folder))
    return _NUMBER.sub(number, text)


def _put(text: str, name: str, found: str) -> str:
    """Put a table between its marks."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = text.partition(start)
    _, second, after = rest.partition(end)
    if not second:
        raise InputError(f"a page has {start} and no {end}")
    return f"{before}{start}\n{found}\n{end}{after}"


def main(words: Sequence[str] | None = None) -> None:
    """Regenerate everything."""
    arguments(__doc__, words)
    folder = Path("bench/results")
    pages = (*PAGES, *CARDS)
    texts = {page: filled(Path(page).read_text(encoding="utf-8"), folder) for page in pages}
    redraw(folder)
    for page, text in texts.items():
        Path(page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
