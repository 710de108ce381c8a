"""A comparison over one target, as bench/batch.py and bench/serve.py keep it: `NAME.json` beside its page."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.measure.records import ModelFile, machine, model_file, published

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


class Comparison(msgspec.Struct, kw_only=True):
    """What a run depends on; max_tokens: of an answer; repeat: runs of each contender."""

    title: str
    command: str
    day: str
    machine: str
    threads: int
    target: ModelFile
    max_tokens: int
    repeat: int


def circumstances(name: str, options: argparse.Namespace, given: Sequence[str]) -> dict[str, Any]:
    """The fields of `Comparison` for a run of bench/NAME.py with these words."""
    target = Path(options.model)
    return {
        "title": options.title or f"{name.capitalize()}, {target.stem}",
        "command": published(f"python bench/{name}.py", given),
        "day": datetime.now(timezone.utc).date().isoformat(),
        "machine": machine(),
        "threads": options.threads,
        "target": model_file(target),
        "max_tokens": options.tokens,
        "repeat": options.repeat,
    }


def made(found: Comparison, what: str) -> str:
    """The sentence of a page that says how a table was made; what: the work that was done."""
    return (
        f"Made by `{found.command}` on {found.day}: {found.machine}, {found.threads} threads; {what}, temperature 0, strict; "
        f"medians of {found.repeat}, the contenders taking turns. Target {found.target.name}, sha256 {found.target.sha256}."
    )


def publish(
    found: Comparison, table: str, out: Path | None, write_page: Callable[[Path], None]
) -> None:
    """Print the table; where there is an `out`, write the results there and the page beside them."""
    print(table)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        write_page(out.parent)
