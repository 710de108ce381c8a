"""`pyspec profile`: what this machine pays for a batch, and what this draft is worth."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console

from pyspec.cli.command import Subcommand
from pyspec.cli.measuring import FILE, MEASURED
from pyspec.cli.options import model_options, open_model
from pyspec.cli.progress import run_progress, store_progress
from pyspec.errors import OptionError
from pyspec.measure.plots import available
from pyspec.measure.profile import draw, measure, say, store, summary
from pyspec.measure.questions import load_questions, select
from pyspec.measure.rounds import RoundsHeader, write_rounds
from pyspec.measure.types import all_types, type_table
from pyspec.profiles import save_prior
from pyspec.store.machine import default_threads
from pyspec.store.manifest import load_manifest

if TYPE_CHECKING:
    from pyspec.llama import SpeculativeLlama
    from pyspec.measure.profile import Measured


@click.command(cls=Subcommand)
@model_options
@click.option("--questions", type=FILE, help="Spec-Bench JSONL; else the shipped set.")
@click.option("--limit", type=click.IntRange(min=1), default=1, show_default=True,
              help="Questions of each category.")  # fmt: skip
@click.option("--every", type=click.IntRange(min=1), default=1, help="Each N-th question only.")
@click.option("-n", "--max-tokens", type=click.IntRange(min=4), default=64, show_default=True,
              help="Most tokens of an answer.")  # fmt: skip
@click.option("--draft-max", "kmax", type=click.IntRange(1, 32), default=16, show_default=True,
              help="Longest draft that is measured, tokens.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=1.0), default=50.0, show_default=True,
              help="About how long to measure.")  # fmt: skip
@click.option("--plot", type=FILE, help="Save a plot (svg, png, pdf).")
@click.option("--rounds", type=FILE, help="Save the recorded rounds, for bench/replay.py.")
@click.option(
    "--prior",
    is_flag=True,
    help="Write what was learned beside the draft, as its prior for other machines.",
)
@click.option("--save/--no-save", default=True, help="Keep the profile for later runs.")
@click.option("--types", is_flag=True,
              help="Instead: time, size and nats of each tensor type of a known model here.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def profile(questions: Path | None, **options: Any) -> None:
    """Measure costs and acceptance of a pair of models, and store what was learned."""
    if options["types"]:
        _types(options)
        return
    if options["plot"] and not available():
        raise OptionError("--plot needs matplotlib", "pip install 'pyspec-llama[plot]'")
    chosen = select(load_questions(questions), options["limit"], every=options["every"])
    with open_model({**options, **MEASURED}) as llm:
        with run_progress() as report:
            found = measure(
                llm, chosen, kmax=options["kmax"], max_tokens=options["max_tokens"],
                budget_s=options["seconds"],
                report=lambda what, share: report(int(100 * share), 100, what),
            )  # fmt: skip
        if options["as_json"]:
            click.echo(msgspec.json.encode(summary(found)))
        else:
            say(found, Console(highlight=False, markup=False))
        _keep(llm, found, options)
    if not options["as_json"]:
        click.echo(f"use: {next_command(found, options)}")


def next_command(found: Measured, options: Mapping[str, Any]) -> str:
    """The command that uses what was found: with the draft where it pays, else with what does."""
    words = ["pyspec", "generate"]
    if options["model"]:
        words += ["-m", options["model"]]
    draft = options["draft"]
    if found.acceptance and found.auto < 1.0:
        draft = "lookup" if found.lookup_share > WORTH_LOOKING else "none"
    if draft != "auto":
        words += ["--draft", draft]
    return f"{shlex.join(words)} ..."


WORTH_LOOKING = 0.05
"""Share of positions where the text's own continuation must be right for lookup to be worth naming."""


def _types(options: dict[str, Any]) -> None:
    manifest = load_manifest()
    name = options["model"] or manifest.default_target
    if (entry := manifest.get(name)) is None:
        raise OptionError(
            f"--types converts known models, and {name} is none", "see `pyspec models list`"
        )
    with store_progress() as show, run_progress() as report:
        found = all_types(entry, options["threads"] or default_threads(), show, report)
    click.echo(msgspec.json.encode(found) if options["as_json"] else type_table(found))


def _keep(llm: SpeculativeLlama, found: Measured, options: dict[str, Any]) -> None:
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)
    if options["plot"]:
        draw(found, options["plot"])
    if options["rounds"]:
        assembly = llm._open()  # noqa: SLF001 - names for the header
        header = RoundsHeader(
            1, Path(llm.model_path).name, assembly.draft, assembly.companion, options["kmax"]
        )
        write_rounds(options["rounds"], header, found.chains)
    if options["prior"]:
        path = save_prior(llm._open(), found.learned)  # noqa: SLF001 - its files
        click.echo(f"prior written: {path.name}", err=True)
    if options["save"]:
        click.echo(f"profile stored: {store(llm, found).name}", err=True)
