"""`pyspec quality`: what the rules cost, against controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyspec.cli.command import Subcommand
from pyspec.cli.measuring import (
    chosen_questions,
    command_line,
    question_options,
    run_options,
    run_progress,
)
from pyspec.cli.options import find_models, model_options
from pyspec.measure.quality import WAYS, QualityResults, answer_all, judge, verdict
from pyspec.measure.quality_report import save_quality, way_table
from pyspec.measure.sides import Sides, parse_ways
from pyspec.store.machine import default_threads

if TYPE_CHECKING:
    from pathlib import Path


@click.command(cls=Subcommand)
@model_options
@question_options
@click.option("--ways", default=WAYS, help="Comma-separated; the first one is the control.")
@click.option("--title", default="What the margin rule costs", help="Heading of the page.")
def quality(out: Path, ways: str, title: str, **options: Any) -> None:
    """Answer each question in many ways side by side; write runs.jsonl, README.md and quality.json to --out.

    Ways are modes as `pyspec bench` has them, and margin+random+..., +thin, +share:S, +record, +own, plain+temp:T:
    tokens a verify, nats under the target, looped answers, checks by a program, each against the first way.
    """
    named, questions, how = parse_ways(ways), chosen_questions(options), run_options(options)
    found = find_models({**options, "companion": "none"})
    threads = options["threads"] or default_threads()
    sides = Sides(
        found["model"], found["draft"], named, n_ctx=options["ctx"], max_tokens=how.max_tokens,
        n_threads=threads, n_threads_batch=threads, n_gpu_layers=options["n_gpu_layers"],
        trust=options["trust_model"], extra_buffers=options["extra_buffers"],
    )  # fmt: skip
    try:
        with run_progress() as report:
            records = answer_all(sides, questions, how, out, report)
    finally:
        sides.close()
    figures = judge(records, questions)
    said = verdict(figures, named)
    results = QualityResults(title, command_line(), records[-1].setup, figures, said)
    save_quality(results, out)
    click.echo(f"{way_table(figures)}\n\n{said}")
    click.echo(f"written to {out}", err=True)
