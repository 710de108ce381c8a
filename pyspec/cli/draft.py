"""`pyspec draft`: which models can draft for a target, what `auto` would use, and a command to run."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyspec.cli.command import LAYERS, command, model_names, option, tell
from pyspec.cli.consoles import print_listing, run_progress
from pyspec.errors import OptionError, PyspecError
from pyspec.screen.progress import busy, store_progress
from pyspec.screen.words import safe
from pyspec.store.devices import lacking_devices
from pyspec.store.drafts import (
    BESIDE,
    LARGEST,
    candidates,
    drafts_here,
    made_for,
    own_head,
    without_drafts,
)
from pyspec.store.header import read_header
from pyspec.store.heads import MTP, unused_heads, why_plain
from pyspec.store.kinds import refuse_other_kinds
from pyspec.store.locate import resolve
from pyspec.store.words import AUTO, FETCH

PAYS = 1.05
"""Speed relative to plain decoding from which a draft is worth its memory."""


@dataclass(frozen=True)
class TrialOptions:
    """Whether and how to measure local drafts."""

    # fmt: off
    measure: bool = option("Measuring", "--measure", is_flag=True,
        help="Run the drafts that are here and report whether they pay on this machine.")
    seconds: float = option("Measuring", "--seconds", type=click.FloatRange(min=5.0), default=20.0,
        help="Time to measure each, roughly.")
    limit: int = option("Measuring", "--limit", type=click.IntRange(min=1), default=3,
        help="How many to measure, smallest first.")
    threads: int | None = option("Measuring", "-t", "--threads", type=click.IntRange(min=1),
        help="Threads, as for generate.")
    n_gpu_layers: int | str = option("Measuring", "-ngl", "--n-gpu-layers", aliases=("--gpu-layers",),
        metavar="auto|all|N", type=LAYERS, default=AUTO, help="Layers on devices, as for generate.")
    # fmt: on


@command(
    examples=[
        ("pyspec draft llama3.1:8b", "Drafts for a model from ollama"),
        ("pyspec draft llama3.1:8b --measure", "Whether it pays on this machine"),
    ],
)
@click.argument("model", required=False, shell_complete=model_names)
@click.option("-m", "--model", "named", shell_complete=model_names, help="Same as MODEL.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def draft(model: str | None, named: str | None, as_json: bool, trial: TrialOptions) -> None:
    """Find drafts for MODEL: files beside it, models here with the same vocabulary, then known ones to fetch.

    The share is roughly the cost of a draft step relative to a step of the target; drafts above a third hardly pay.
    """
    if model and named:
        raise click.UsageError("give the model once")
    model = model or named
    if trial.n_gpu_layers not in (0, AUTO):
        for line in lacking_devices():
            tell(line, err=True)
    with store_progress() as progress:
        target = resolve(model, progress)
    with busy("reading model files"):
        read_header(target)  # raises what is wrong with the file
        refuse_other_kinds(target)
        rows = _drafts(target)
        auto = _auto(target, rows)
    if trial.measure:
        _measure(target, rows, trial)
    if as_json:
        tell(json.dumps(rows, indent=1))
        return
    _list(target, rows)
    for row in rows:
        if "verdict" in row:
            tell(f"{safe(row['name'])} {row['verdict']}")
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
    """Return a command to run as it is: with the fastest measured draft, a small local one, one to fetch, or lookup.

    A draft above a third of the target's size hardly pays, so it is named only after it was measured.
    """
    measured = [row for row in rows if "verdict" in row]
    best = max(measured, key=lambda row: row["times_plain"] or 0.0) if measured else None
    if best is not None and (best["times_plain"] or 0.0) < PAYS:
        return _chat(model, "lookup" if auto else "")
    small = [row for row in rows if row["share"] <= LARGEST]
    best = best or auto or next((row for row in small if row["path"]), None)
    if best is None and small:
        return _chat(model, FETCH)
    if best is None or best is auto:
        return _chat(model, "")
    return _chat(model, f"lookup+{best['path'] if best['where'] == BESIDE else best['name']}")


def _chat(model: str | None, draft: str) -> str:
    target = f" -m {shlex.quote(model)}" if model else ""
    return f"pyspec chat{target}" + (f" --draft {shlex.quote(draft)}" if draft else "")


def _measure(target: Path, rows: list[dict[str, Any]], trial: TrialOptions) -> None:
    here = [row for row in rows if row["path"]][: trial.limit]
    if not here:
        if plain := why_plain(target):
            raise OptionError(plain, "leave out --measure")
        raise OptionError(
            "no draft for this model is on this machine", "fetch one with `pyspec models pull NAME`"
        )
    for row in here:
        row.update(_tried(target, row, trial))


def _tried(target: Path, row: dict[str, Any], trial: TrialOptions) -> dict[str, Any]:
    """Measure a draft's speed-up and the acceptance rate of its first tokens, or return why it cannot run.

    The result goes into the pair's profile.
    """
    from pyspec.cli.opening import open_model  # noqa: PLC0415 - these load llama.cpp
    from pyspec.cli.options import ModelOptions  # noqa: PLC0415 - these load llama.cpp
    from pyspec.cli.profile import stored  # noqa: PLC0415
    from pyspec.profiling.profile import measure  # noqa: PLC0415
    from pyspec.profiling.questions import load_questions, select  # noqa: PLC0415
    from pyspec.store.watch import Watch  # noqa: PLC0415

    draft = MTP if row["name"] == MTP else row["path"]
    pair = ModelOptions(
        str(target), f"lookup+{draft}", threads=trial.threads, n_gpu_layers=trial.n_gpu_layers
    )
    try:
        with open_model(pair.steady()) as llm, run_progress() as report:
            watch = Watch()
            measured = measure(
                llm, select(load_questions(None), 1), max_tokens=48, budget_s=trial.seconds,
                report=lambda done, total, what: report(done, total, f"{row['name']}: {what}"),
            )  # fmt: skip
            others = watch.others() if watch.busy(int(llm.n_threads)) else 0.0
            tell(f"{safe(row['name'])}: {stored(llm, measured, others)}", err=True)
    except PyspecError as error:
        return {"times_plain": None, "accepted": None, "verdict": f"cannot be used: {error}"}
    found = measured.figures
    times, accepted = round(found.auto, 3), found.acceptance[0] if found.acceptance else None
    return {"times_plain": times, "accepted": accepted, "verdict": trial_sentence(times, accepted)}


def trial_sentence(times_plain: float, accepted: float | None) -> str:
    """Say in one line whether a draft pays."""
    pays = "pays" if times_plain >= PAYS else "does not pay here"
    said = f"{pays}: {times_plain:.2f} times as fast as without drafts"
    return said if accepted is None else f"{said}, {100 * accepted:.0f} % of first tokens accepted"
