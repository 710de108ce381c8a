"""`pyspec quality`: what each gate of the margin rule costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyspec.cli.measuring import (
    MEASURED,
    chosen_questions,
    command_line,
    question_options,
    run_options,
    run_progress,
)
from pyspec.cli.options import model_options, open_model
from pyspec.measure.bench import Task
from pyspec.measure.modes import parse_modes
from pyspec.measure.quality import GATES
from pyspec.measure.quality_report import gate_table
from pyspec.measure.quality_run import run_quality

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@model_options
@question_options
@click.option("--length", default="auto", show_default=True, help="Draft length of the gates.")
@click.option(
    "--gates", default=GATES, show_default=True, help="Modes; plain and strict are added."
)
def quality(out: Path, gates: str, **options: Any) -> None:
    """Compare gates on the same questions; write runs.jsonl, quality.md and .json to --out.

    Nats of the emitted text under the target, repetition, endings, checks that a program makes.
    """
    named = [_at_length(gate.strip(), options["length"]) for gate in gates.split(",")]
    named = [name for name in ("plain", "strict") if name not in named] + named
    task = Task(
        questions=chosen_questions(options),
        modes=parse_modes(",".join(named)),
        options=run_options(options),
        folder=out,
        command=command_line(),
        tie=options["tie"],
    )
    with open_model({**options, **MEASURED}) as llm, run_progress() as report:
        results = run_quality(llm, task, report, lambda note: click.echo(note, err=True))
    click.echo(gate_table(results.gates))
    click.echo(f"\n{results.verdict}")
    click.echo(f"written to {out}", err=True)


def _at_length(gate: str, length: str) -> str:
    """A gate at a length: long drafts show what it lets through where `auto` would not draft."""
    return gate if length == "auto" or not gate.startswith("margin") else f"{gate}+{length}"
