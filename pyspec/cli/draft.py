"""`pyspec draft`: which draft goes with a model, and whether it pays here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from pyspec.cli.command import command, model_names, option
from pyspec.cli.streams import busy, run_progress, stdout_console, store_progress
from pyspec.display import safe
from pyspec.errors import OptionError, PyspecError
from pyspec.store.drafts import Candidate, candidates, fitting
from pyspec.store.locate import resolve

if TYPE_CHECKING:
    from pyspec.llama import SpeculativeLlama

PAYS = 1.05
"""How many times as fast as plain decoding a draft must make it to be worth its memory."""


@dataclass(frozen=True)
class TrialOptions:
    """Whether the drafts that are here are run, and how."""

    # fmt: off
    measure: bool = option("Measuring", "--measure", is_flag=True,
        help="Run the drafts that are here and say whether they pay on this machine.")
    seconds: float = option("Measuring", "--seconds", type=click.FloatRange(min=5.0), default=20.0,
        help="About how long to measure each.")
    limit: int = option("Measuring", "--limit", type=click.IntRange(min=1), default=3,
        help="Measure so many, the smallest first.")
    threads: int | None = option("Measuring", "-t", "--threads", type=click.IntRange(min=1),
        help="Threads, as in generate.")
    n_gpu_layers: int = option("Measuring", "-ngl", "--n-gpu-layers", default=0, help="Layers on the GPU.")
    # fmt: on


@dataclass(frozen=True)
class Verdict:
    """What a draft brought on this machine: how many times as fast as plain decoding, or why it cannot run."""

    times_plain: float | None
    accepted: float | None
    reason: str = ""

    @property
    def sentence(self) -> str:
        """Whether it pays, in one line."""
        if self.times_plain is None:
            return f"cannot be used: {self.reason}"
        said = f"{self.times_plain:.2f} times as fast as without drafts"
        if self.accepted is not None:
            said += f", {100 * self.accepted:.0f} % of first tokens accepted"
        if self.times_plain >= PAYS:
            return f"pays: {said}"
        return f"does not pay here: {said}"


@command(
    examples=[
        ("pyspec draft llama3.2:3b", "What could draft for a model of ollama's"),
        ("pyspec draft llama3.2:3b --measure", "Whether it pays on this machine"),
    ],
)
@click.argument("model", required=False, shell_complete=model_names)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def draft(model: str | None, as_json: bool, trial: TrialOptions) -> None:
    """Find the drafts that go with MODEL: models here with its vocabulary, smallest first, then known ones to fetch.

    The share says about what a step of the draft costs next to one of the target's: drafts above a third hardly pay.
    """
    with store_progress() as progress:
        target = resolve(model, progress)
    with busy("looking into the files"):
        rows = _all(target)
    verdicts = _measured(target, rows, trial) if trial.measure else {}
    if as_json:
        click.echo(json.dumps([_as_dict(row, verdicts.get(row.name)) for row in rows], indent=1))
        return
    if rows:
        _table(rows)
    else:
        click.echo(
            "no draft here or known has this model's vocabulary; --draft lookup drafts from the text itself"
        )
    for row in rows:
        if row.name in verdicts:
            click.echo(f"{safe(row.name)} {verdicts[row.name].sentence}")
    click.echo(f"use: {_command(model, rows, verdicts)}")


def _all(target: Path) -> list[Candidate]:
    """Shipped drafts first, each file once."""
    shipped = _shipped(target)
    named = {row.name for row in shipped}
    return shipped + [row for row in candidates(target) if row.name not in named]


def _shipped(target: Path) -> list[Candidate]:
    """The drafts that the manifest has for exactly this target."""
    size = target.stat().st_size
    return [
        Candidate(
            entry.name, "pyspec", entry.size, entry.size / size, entry.summary, resolve(entry.name)
        )
        for entry in fitting(target, "draft")
    ]


def _table(rows: list[Candidate]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("draft", "MB", "share", "where", "what"):
        right = column in ("MB", "share")
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        share = f"{100 * row.share:.0f} %"
        table.add_row(safe(row.name), f"{row.size / 1e6:.0f}", share, row.origin, safe(row.note))
    stdout_console().print(table)


def _as_dict(row: Candidate, verdict: Verdict | None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": row.name,
        "where": row.origin,
        "path": None if row.path is None else str(row.path),
        "size": row.size,
        "share": round(row.share, 4),
        "note": row.note,
    }
    if verdict is not None:
        made |= {
            "times_plain": verdict.times_plain,
            "accepted": verdict.accepted,
            "verdict": verdict.sentence,
        }
    return made


def _command(model: str | None, rows: list[Candidate], verdicts: Mapping[str, Verdict]) -> str:
    """The command that uses the best that is known: the fastest measured, else the smallest here, else lookup."""
    target = f" -m {shlex.quote(model)}" if model else ""
    measured = {name: v.times_plain for name, v in verdicts.items() if v.times_plain is not None}
    name = "lookup"
    if measured:
        best = max(measured, key=lambda each: measured[each])
        name = f"lookup+{best}" if measured[best] >= PAYS else "lookup"
    elif not verdicts and (here := [row for row in rows if row.path is not None]):
        name = f"lookup+{here[0].name}"
    elif not verdicts and rows:
        return f"pyspec models pull {shlex.quote(rows[0].name)}"
    return f"pyspec generate{target} --draft {shlex.quote(name)} ..."


# -- measuring ---------------------------------------------------------------------------------------------------------


def _measured(target: Path, rows: list[Candidate], trial: TrialOptions) -> dict[str, Verdict]:
    here = [row for row in rows if row.path is not None][: trial.limit]
    if not here:
        raise OptionError("no draft for this model is here", "fetch one: `pyspec models pull NAME`")
    return {row.name: _verdict(target, row, trial) for row in here}


def _verdict(target: Path, row: Candidate, trial: TrialOptions) -> Verdict:
    from pyspec.measure.profile import measure  # noqa: PLC0415
    from pyspec.measure.tasks import load_questions, select  # noqa: PLC0415

    questions = select(load_questions(None), 1)
    try:
        with _opened(target, row, trial) as llm, run_progress() as report:
            found = measure(
                llm,
                questions,
                max_tokens=48,
                budget_s=trial.seconds,
                report=lambda done, total, what: report(done, total, f"{row.name}: {what}"),
            )
    except PyspecError as error:
        return Verdict(None, None, str(error))
    acceptance = found.figures.acceptance
    return Verdict(round(found.figures.auto, 3), acceptance[0] if acceptance else None)


def _opened(target: Path, row: Candidate, trial: TrialOptions) -> SpeculativeLlama:
    from pyspec.cli.options import ModelOptions, open_model  # noqa: PLC0415

    return open_model(
        ModelOptions(
            str(target),
            f"lookup+{row.path}",
            threads=trial.threads,
            n_gpu_layers=trial.n_gpu_layers,
        )
    )
