"""Makes bench/results/card/README.md from what `bench/card/run.sh MODEL OUT` left in OUT.

    python bench/card/page.py OUT     copies OUT's raw results to bench/results/card and writes the page
    python bench/card/page.py         writes the page of what is there

A cell without a result is empty.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from shutil import copyfile
from typing import Any

import msgspec

BENCH = Path(__file__).parents[1]
sys.path[:0] = [str(BENCH), str(BENCH / "card")]  # the scripts, however this was started

from common import arguments, page_of  # noqa: E402 - behind their folders
from measure.report import Results, code_of, table  # noqa: E402
from sequences import ALONE, JUDGED, key_of, measured  # noqa: E402
from serve import ServeResults  # noqa: E402

FOLDER = BENCH / "results" / "card"
NUMBERS, TEMPS, DEPTHS, ROWS = (1, 4, 8, 16, 32, 64), (0.0, 0.8), (64, 1000, 4000), (1, 2, 4, 8, 16, 32, 64)  # fmt: skip
COMPARED = {
    "bench-t0": "wide target, T 0", "bench-t08": "wide target, T 0.8", "bench-t1": "wide target, T 1",
    "mixture-card": "mixture, experts on the card", "mixture-processor": "mixture, experts on the processor",
}  # fmt: skip
RELAXED = ("bench-t0", "bench-t1")
"""Runs with the margin rule."""
SERVED = (1, 4, 16)
ABOUT = """What one graphics card tells in nine minutes, by `bench/card/run.sh`. The wide target says what SmolLM2-135M says and
costs what a model of 7 billion parameters costs; the good draft is SmolLM2-135M without block 4, the poor one without block 28.
Times plain are over plain decoding of the same batch, or of the same questions. "auto" decides by the draft's p alone, "auto,
companion" may also ask the companion, "companion" always does; "margin" is "auto" under the margin rule. Empty cells were not
measured."""
NO_CARD = "**No card was at hand yet: nothing here is measured.**"


def write(folder: Path = FOLDER) -> None:
    """Write the page of a folder's results."""
    cells = [cell for cell in measured(folder / "sequences.jsonl") if "error" not in cell]
    compared = {name: read(folder / f"{name}.json", Results) for name in COMPARED}
    served = {n: read(folder / f"serve-{n}.json", ServeResults) for n in SERVED}
    curves = {(one["flash"], one["depth"]): one for one in measured(folder / "curves.jsonl")}
    parts = [
        made(folder, cells), "## Sequences", sequences(cells), "## Comparisons", comparisons(compared),
        "## Flash attention", "Milliseconds of a decode by its rows, on / off.", attention(curves),
        "## Servers", *servers(served), "## Time outside decodes", outside(cells),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(page_of("On a card", ABOUT, *parts), encoding="utf-8")


def read(path: Path, kind: type[Any]) -> Any:
    """A file of results; None if there is none."""
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def made(folder: Path, cells: Sequence[dict[str, Any]]) -> str:
    """How the results were made."""
    if not any(path.name != "README.md" for path in folder.glob("*")):
        return NO_CARD
    first = cells[0] if cells else {}
    steps = ", ".join(
        f"{one['step']} {one['seconds']} s" + f" (status {one['status']})" * bool(one["status"])
        for one in measured(folder / "steps.jsonl")
    )
    where = f" on {first['machine']}; {first['placed'] or 'all on the processor'}" if first else ""
    return f"Made by `bench/card/run.sh`{code_of(first.get('commit', ''))}{where}. Steps: {steps or '-'}."


def sequences(cells: Sequence[dict[str, Any]]) -> str:
    """A row for each draft, temperature and number of sequences: plain's speed, and the others' times plain."""
    keys = [(False, who) for who in ALONE[1:]] + [(True, who) for who in JUDGED[1:]]
    head = ["draft", "T", "sequences", "plain, tokens/s"]
    head += [f"{who}, companion" if judged and who == "auto" else who for judged, who in keys]
    found = {key_of(cell): cell["tokens"] / cell["seconds"] for cell in cells}
    rows = []
    for draft, temp, n in product(("good", "poor"), TEMPS, NUMBERS):
        speed = {
            (judged, who): found.get((draft, judged, n, temp, who), 0.0)
            for judged, who in [*keys, *product((False, True), ["plain"])]
        }
        times = [
            f"{own / base:.2f}" if (own := speed[key]) and (base := speed[key[0], "plain"]) else ""
            for key in keys
        ]
        plain = speed[False, "plain"]
        rows.append([draft, f"{temp:g}", str(n), f"{plain:.0f}" if plain else "", *times])
    return table(head, rows)


def outside(cells: Sequence[dict[str, Any]]) -> str:
    """The share of a cell's time that is in no decode, at T 0 with the good draft."""
    contenders = ("plain", "fixed:3", "auto")
    shown = {
        key_of(c): f"{100 * (1 - sum(c['decode_s'].values()) / c['whole']):.1f} %" for c in cells
    }
    rows = [
        [str(n), *(shown.get(("good", False, n, 0.0, who), "") for who in contenders)]
        for n in NUMBERS
    ]
    return table(["sequences", *contenders], rows)


def comparisons(compared: dict[str, Results | None]) -> str:
    """A row for each run and mode; a decode of eight rows in decodes of one."""
    rows = []
    for name, results in compared.items():
        known = {s.who: _compared(s, results) for s in results.summaries} if results else {}
        ways = ("plain", "strict", "margin")[: 3 if name in RELAXED else 2]
        rows += [[COMPARED[name], who, *known.get(who, [""] * 5)] for who in ways]
    head = ["", "mode", "times plain", "worst kind", "tokens a verify", "outside decodes", "8 rows"]
    return table(head, rows)


def _compared(one: Any, results: Results) -> list[str]:
    curve = results.drawn.curves.get("target", [])
    worst = min(speed.speed_up for kind, speed in one.speeds.items() if kind != "total")
    return [
        f"{one.geomean:.2f}",
        f"{worst:.2f}",
        f"{one.mean_length:.2f}" if one.mean_length else "",
        f"{100 * one.other:.1f} %" if one.other is not None else "",
        f"{curve[8] / curve[1]:.2f}" if len(curve) > 8 else "",
    ]


def attention(curves: dict[tuple[str, int], dict[str, Any]]) -> str:
    """A row for each depth."""
    rows = []
    for depth in DEPTHS:
        both = [curves.get((flash, depth), {}) for flash in ("on", "off")]
        cells = [[one.get("ms", {}).get(str(n)) for one in both] for n in ROWS]
        read = [one.get("read_ms") for one in both]
        rows.append([str(depth), *(_pair(cell) for cell in (read, *cells))])
    return table(["depth", "reading it", *map(str, ROWS)], rows)


def _pair(values: Sequence[float | None]) -> str:
    if not any(values):
        return ""
    return " / ".join("-" if value is None else f"{value:.2f}" for value in values)


def servers(served: dict[int, ServeResults | None]) -> list[str]:
    """A table for each number of clients, or one row that is empty."""
    parts = []
    for n, results in served.items():
        empty = table(["contender", "tokens/s", "of llama-server"], [["", "", ""]])
        parts += [f"{n} clients:", results.table() if results else empty]
    return parts


def take(out: Path, folder: Path = FOLDER) -> None:
    """Copy raw results, without logs."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {path.name: path for path in out.glob("*.json*")}
    found |= {f"{name}.json": out / name / "results.json" for name in COMPARED}
    for name, path in found.items():
        if path.exists() and re.fullmatch(r"[\w-]+\.jsonl?", name):
            copyfile(path, folder / name)


def main(words: Sequence[str] | None = None) -> None:
    """Copy what was given, and write the page."""
    if given := arguments(__doc__, words, "out?").out:
        take(Path(given))
    write()


if __name__ == "__main__":
    main()
