"""The README's table of results, made from `bench/results/*/results.json` and `bench/results/batch/*.json`.

    python -m pyspec.measure.readme [--check]    in the repository's root

What stands between `<!-- results -->` and `<!-- /results -->` is replaced; with --check it is
compared instead, and a difference ends with exit code 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from pyspec.errors import InputError
from pyspec.measure import batches
from pyspec.measure.report import Results, table
from pyspec.measure.stats import TOTAL, Summary

START, END = "<!-- results -->", "<!-- /results -->"
PLAIN = "plain"
_SHOWN = 12
_HEAD = ["what", "way", "tokens/s", "over plain", "best", "worst", "first token ms"]


def results_block(folder: Path, link: str = "bench/results") -> str:
    """One table of all results under `folder`, by name; empty where there are none."""
    found = {path.parent.name: _read(path) for path in sorted(folder.glob("*/results.json"))}
    if not found:
        return ""
    rows = [
        [f"[{results.title}]({link}/{name}/README.md)" if i == 0 else "", *_row(summary)]
        for name, results in found.items()
        for i, summary in enumerate(results.summaries[:_SHOWN])
    ]
    for batch in batches.load(folder / "batch"):
        rows += batches.readme_rows(batch, f"{link}/batch/README.md")
    return f"{_where(list(found.values()))}\n\n{table(_HEAD, rows)}"


def _read(path: Path) -> Results:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path}: {error}") from None


def _where(found: list[Results]) -> str:
    """Machines, days and versions, each named once, and what the columns mean."""
    setups = [results.setup for results in found]
    places = dict.fromkeys(f"{s.machine}, {s.threads} threads" for s in setups)
    days = dict.fromkeys(s.day for s in setups)
    return (
        f"{'; '.join(places)}; {', '.join(days)}. Tokens a second after the first token; over plain "
        "decoding on the same questions as a geometric mean over categories, then the best and the "
        "worst category; batches over one sequence at a time. Each title leads to its page: categories, "
        "spread, files and the command that made it."
    )


def _row(summary: Summary) -> list[str]:
    """A way of answering: speed, speed-up, best and worst category, first token."""
    ups = sorted((s.speed_up, name) for name, s in summary.speeds.items() if name != TOTAL)
    ends = [f"{name} {up:.2f}" for up, name in (ups[-1], ups[0])] if ups else ["-", "-"]
    total = summary.speeds.get(TOTAL)
    return [
        summary.who,
        f"{total.rate:.1f}" if total else "-",
        f"{summary.geomean:.2f}",
        *(["-", "-"] if summary.who == PLAIN else ends),
        f"{summary.first_ms:.0f}",
    ]


def replaced(text: str, block: str) -> str:
    """`text` with the block between the marks replaced. Raises InputError without the marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise InputError(f"the README has no {START} ... {END}")
    inside = f"\n{block}\n" if block else "\n"
    return f"{before}{START}{inside}{END}{after}"


def main(arguments: list[str]) -> int:
    """Replace or check; the exit code."""
    readme = Path("README.md")
    text = readme.read_text(encoding="utf-8")
    new = replaced(text, results_block(Path("bench/results")))
    if "--check" in arguments:
        return int(new != text)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
