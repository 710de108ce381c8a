"""`pyspec draft`: which models can draft for a target, what `auto` would use, and a command to run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from pyspec.cli.command import command, model_names, tell
from pyspec.gguf.header import read_header
from pyspec.gguf.kinds import MTP, refuse_other_kinds, unused_heads, why_plain
from pyspec.hub.drafts import (
    BESIDE,
    LARGEST,
    candidates,
    drafts_here,
    made_for,
    own_head,
    without_drafts,
)
from pyspec.hub.locate import resolve
from pyspec.screen.display import print_listing
from pyspec.screen.progress import busy, store_progress
from pyspec.screen.words import safe


@command(
    examples=[
        ("pyspec draft llama3.1:8b", "Drafts for a model from ollama"),
        ("pyspec measure -m llama3.1:8b", "Whether it pays on this machine"),
    ],
)
@click.argument("model", required=False, shell_complete=model_names)
@click.option("-m", "--model", "named", shell_complete=model_names, help="Same as MODEL.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def draft(model: str | None, named: str | None, as_json: bool) -> None:
    """Find drafts for MODEL: files beside it, models here with the same vocabulary, then known ones to fetch.

    The share is roughly the cost of a draft step relative to a step of the target; drafts above a third hardly pay.
    """
    if model and named:
        raise click.UsageError("give the model once")
    model = model or named
    with store_progress() as progress:
        target = resolve(model, progress)
    with busy("reading model files"):
        read_header(target)  # raises what is wrong with the file
        refuse_other_kinds(target)
        rows = _drafts(target)
        auto = _auto(target, rows)
    if as_json:
        tell(json.dumps(rows, indent=1))
        return
    _list(target, rows)
    if unused := unused_heads(target):
        tell(unused)
    tell(f"--draft auto, the default, {_does(target, auto)}")
    tell(f"use: {_command(model, rows, auto)}")


def _does(target: Path, auto: dict[str, Any] | None) -> str:
    if why_plain(target):
        return "decodes plainly"
    if auto is None:
        return "uses lookup alone"
    return f"uses {safe(auto['name'])}{', its own head' if auto['name'] == MTP else ''}"


def _list(target: Path, rows: list[dict[str, Any]]) -> None:
    if not rows:
        tell(
            why_plain(target)
            or without_drafts(target)
            or "no draft is known for this model; lookup drafts repeated text without one"
        )
        return
    cells = (
        (
            row["name"], f"{row['size'] / 1e9:.2f}" if row["size"] else "-",
            f"{row['memory'] / 1e9:.2f}" if row["memory"] else "-",
            f"{100 * row['share']:.0f} %" if row["size"] else "-", row["where"], row["licence"] or "-", row["note"] or "-",
        )
        for row in rows
    )  # fmt: skip
    head = ("draft", "GB", "GB in memory", "share", "where", "licence", "what")
    first = ("draft", "GB", "share", "where", "what", "licence", "GB in memory")
    print_listing(head, cells, first, 4)


def _drafts(target: Path) -> list[dict[str, Any]]:
    """List drafts, each file once: the target's own head, then those made for it, then others. Empty if none can work."""
    if why_plain(target):
        return []
    rows = [*own_head(target), *made_for(target)]
    named = {each.name for each in rows}
    return [
        {"name": row.name, "where": row.origin, "path": str(row.path) if row.path else None, "size": row.size,
         "share": round(row.share, 4), "note": row.note, "memory": row.memory, "licence": row.licence}
        for row in [*rows, *(each for each in candidates(target) if each.name not in named)]
    ]  # fmt: skip


def _auto(target: Path, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the draft that `auto` tries first."""
    if not rows or rows[0]["name"] == MTP:
        return rows[0] if rows else None
    own = {each.name for each in made_for(target) if each.path}
    if shipped := [row for row in rows if row["name"] in own]:
        return shipped[0]
    found = next(drafts_here(target), None)
    return next((row for row in rows if found and row["path"] == str(found.path)), None)


def _command(model: str | None, rows: list[dict[str, Any]], auto: dict[str, Any] | None) -> str:
    """Return a command to run as it is: with a small local draft, one to fetch, or lookup.

    A draft above a third of the target's size hardly pays.
    """
    small = [row for row in rows if row["share"] <= LARGEST]
    best = auto or next((row for row in small if row["path"]), None)
    if best is None and small:
        return f"pyspec models pull {shlex.quote(small[0]['name'])}"
    if best is None or best is auto:
        return _chat(model, "")
    return _chat(model, f"lookup+{best['path'] if best['where'] == BESIDE else best['name']}")


def _chat(model: str | None, draft: str) -> str:
    target = f" -m {shlex.quote(model)}" if model else ""
    return f"pyspec chat{target}" + (f" --draft {shlex.quote(draft)}" if draft else "")
