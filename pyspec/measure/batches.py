"""What batches gained: the results of `bench/batch.py`, their page and their rows in the README."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from pyspec.measure.report import table
from pyspec.measure.setup import ModelFile

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOP, ALONE = "loop", "plain:1"
_HEAD = ("way", "tokens", "tokens/s", "of the loop", "of plain", "peak MB", "KV MB")
_MORE = ("beyond KV", "outside decodes", "accepted")


class Way(msgspec.Struct):
    """One way of answering all records; medians over runs.

    rate: tokens a second. peak: of the resident set, MB, weights included; 0 where it is not known. kv: of
    that, the KV cells. outside: share of time outside llama.cpp's decodes.
    """

    name: str
    tokens: float
    rate: float
    peak: float = 0.0
    kv: float = 0.0
    outside: float = 0.0
    accepted: int = 0
    verified: int = 0


class BatchResults(msgspec.Struct):
    """A run of `bench/batch.py` over one target, as `NAME.json` beside the page."""

    title: str
    command: str
    day: str
    machine: str
    threads: int
    target: ModelFile
    records: int
    max_tokens: int
    repeat: int
    ways: list[Way]

    def way(self, name: str) -> Way | None:
        """A way by name."""
        return next((way for way in self.ways if way.name == name), None)


def summary(name: str, runs: Sequence[dict[str, float]]) -> Way:
    """A way's medians; a run has tokens, seconds and what else was measured."""
    last = runs[-1]
    middle = {
        key: median(run[key] for run in runs) for key in ("tokens", "peak", "kv") if key in last
    }
    return Way(
        name=name,
        rate=median(run["tokens"] / run["seconds"] for run in runs),
        outside=median(run.get("outside_decodes", 0.0) for run in runs),
        accepted=int(last.get("accepted", 0)),
        verified=int(last.get("verified", 0)),
        **middle,
    )


def save(results: BatchResults, path: Path) -> None:
    """Write the results, and the page of all results beside them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    text = page(load(path.parent), [plot.name for plot in sorted(path.parent.glob("*.svg"))])
    (path.parent / "README.md").write_text(text, encoding="utf-8")


def load(folder: Path) -> list[BatchResults]:
    """All results in a folder, by file name."""
    return [
        msgspec.json.decode(path.read_bytes(), type=BatchResults)
        for path in sorted(folder.glob("*.json"))
    ]


def page(found: Sequence[BatchResults], plots: Sequence[str] = ()) -> str:
    """The results as Markdown."""
    parts = ["# Batches", _INTRO]
    for results in found:
        parts += [f"## {results.title}", _made(results), batch_table(results)]
    parts += [f"![{name.rpartition('.')[0]}]({name})" for name in plots]
    return "\n\n".join(parts) + "\n"


_INTRO = (
    '"loop" is llama_cpp.Llama, one prompt after another; "server" is llama-server with 16 slots and 16 clients; '
    '"plain:N" is `pyspec batch --draft none --parallel N`; "speculative:N" the same with the drafts that `auto` stands '
    'for: lookup for fewer than 8 sequences, none in streams for more; "lookup:N" with lookup in any case. '
    "Peak is the resident set, weights included; beyond "
    "KV is what it has over the loop's, without the KV cells of both."
)


def _made(results: BatchResults) -> str:
    target = results.target
    return (
        f"Made by `{results.command}` on {results.day}: {results.machine}, {results.threads} threads; "
        f"{results.records} records, at most {results.max_tokens} tokens each, temperature 0, strict; medians of "
        f"{results.repeat}, the ways taking turns. Target {target.name}, sha256 {target.sha256}."
    )


def batch_table(results: BatchResults) -> str:
    """Speed, memory and what was accepted, a row a way."""
    loop = results.way(LOOP)
    rows = [
        [
            way.name,
            f"{way.tokens:.0f}",
            f"{way.rate:.1f}",
            _ratio(way, loop),
            _ratio(way, results.way(f"plain:{way.name.partition(':')[2]}")),
            f"{way.peak:.0f}" if way.peak else "-",
            f"{way.kv:.0f}" if way.peak else "-",
            _beyond(way, loop),
            f"{100 * way.outside:.1f} %" if way.outside else "-",
            f"{way.accepted} of {way.verified}" if way.verified else "-",
        ]
        for way in results.ways
    ]
    return table([*_HEAD, *_MORE], rows)


def readme_rows(results: BatchResults, link: str) -> list[list[str]]:
    """Rows of the README's table: speed-ups are over one sequence at a time, decoded plainly."""
    alone = results.way(ALONE) or results.way(LOOP)
    return [
        [
            f"[{results.title}]({link})" if i == 0 else "",
            way.name,
            f"{way.rate:.1f}",
            _ratio(way, alone),
            *["-"] * 3,
        ]
        for i, way in enumerate(results.ways)
    ]


def _ratio(way: Way, base: Way | None) -> str:
    return f"{way.rate / base.rate:.2f}" if base else "-"


def _beyond(way: Way, loop: Way | None) -> str:
    if not way.peak or not loop or not loop.peak:
        return "-"
    return f"{100 * (way.peak - way.kv - loop.peak + loop.kv) / loop.peak:+.0f} %"
