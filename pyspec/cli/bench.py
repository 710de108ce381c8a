"""`pyspec bench`: modes and peers on questions, one page of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyspec.cli.command import Subcommand
from pyspec.cli.measuring import (
    FILE,
    MEASURED,
    chosen_questions,
    command_line,
    question_options,
    run_options,
    run_progress,
)
from pyspec.cli.options import model_options, open_model
from pyspec.measure.bench import Task, run_bench
from pyspec.measure.modes import parse_modes
from pyspec.measure.report import speed_table

if TYPE_CHECKING:
    from pathlib import Path


@click.command(cls=Subcommand)
@model_options
@question_options
@click.option("--modes", default="plain,strict,margin", show_default=True, help="Comma-separated.")
@click.option("--peers", default="", help="llama_cpp[-lookup], server[-draft[:K]|-ngram], commas.")
@click.option("--server", type=FILE, help="llama-server; else the one on PATH.")
@click.option("--peer-draft", type=FILE, help="Draft GGUF for llama-server; else the loaded one.")
@click.option("--memory", is_flag=True, help="Also peak memory, in processes of their own.")
@click.option("--title", default="Benchmark", show_default=True, help="Heading of the page.")
@click.option("--about", default="", help="A paragraph under the heading.")
def bench(out: Path, **options: Any) -> None:
    """Compare modes and peers; write runs.jsonl, README.md, results.json and plots to --out.

    Modes are parts joined by +: plain, strict, margin/gap=G/theta=T, fixed:K, confidence:P,
    companion, auto, lookup, model, nothing. A run that was interrupted goes on where it stopped.
    """
    task = Task(
        questions=chosen_questions(options),
        modes=parse_modes(options["modes"]),
        options=run_options(options),
        folder=out,
        peers=[name.strip() for name in options["peers"].split(",") if name.strip()],
        server=options["server"],
        peer_draft=options["peer_draft"],
        title=options["title"],
        about=options["about"],
        command=command_line(),
        memory=options["memory"],
        tie=options["tie"],
    )
    with open_model({**options, **MEASURED}) as llm, run_progress() as report:
        results = run_bench(llm, task, report, lambda note: click.echo(note, err=True))
    click.echo(speed_table(results.summaries))
    click.echo(f"written to {out}", err=True)
