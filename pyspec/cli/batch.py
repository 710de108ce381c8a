"""`pyspec batch`: many prompts from files, answered at once, nothing lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pyspec.batch import Batch, Settings
from pyspec.batch.contexts import MOST_SEQUENCES
from pyspec.batch.files import FileRun, RunProgress
from pyspec.batch.output import open_output
from pyspec.batch.reading import MAX_RECORD, Reading, find_sources, read_sources
from pyspec.cli.command import Subcommand
from pyspec.cli.options import (
    DraftOptions,
    ModelOptions,
    SamplerOptions,
    draft_options,
    model_options,
    sampler_options,
)
from pyspec.cli.progress import batch_progress, show_summary
from pyspec.cli.streams import interruptible
from pyspec.errors import Cancelled, OptionError
from pyspec.files import utf8

SIGNALS = (signal.SIGINT, signal.SIGTERM)
FAILED_ITEMS = 3
"""Exit code of a batch that finished with failed records."""


@click.command(cls=Subcommand)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "-o", "--output", required=True, metavar="OUT|DIR/", help="JSONL file, or folder of text files."
)
@click.option(
    "--per", type=click.Choice(["line", "file", "paragraph"]), default="line", show_default=True
)
@click.option(
    "--template", type=click.Path(path_type=Path), help="Text with {text} where each input goes."
)
@click.option(
    "--exact",
    is_flag=True,
    help="Texts that no neighbour, order or interruption changes: nothing is drafted.",
)
@click.option("--column", help="Where the prompts are in CSV files.")
@click.option("--overwrite", is_flag=True, help="Replace what is at OUT, whatever it is.")
@click.option("--retry-failed", is_flag=True, help="Answer again what failed before.")
@click.option(
    "--parallel",
    type=click.IntRange(1, MOST_SEQUENCES),
    help="Answers at once; by the profile if not given.",
)
@model_options
@draft_options
@sampler_options
@click.option(
    "-n", "--max-tokens", type=click.IntRange(0, 2**31 - 1), default=512, show_default=True
)
@click.option("-s", "--system", help="System text of records that bring none.")
@click.option("--raw", is_flag=True, help="Give prompts as they are, without a chat template.")
@click.option(
    "--stop", multiple=True, help="End answers before this text; may be given more than once."
)
@click.option(
    "--max-input",
    type=click.IntRange(min=1),
    default=MAX_RECORD,
    show_default=True,
    help="Bytes of a record.",
)
@click.option(
    "--encoding-errors",
    type=click.Choice(["strict", "replace"]),
    default="strict",
    show_default=True,
)
@click.option(
    "--counts",
    is_flag=True,
    help="All counts of speculation in each line; they differ from run to run.",
)
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Actors of --engine ray.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
def batch(
    inputs: tuple[str, ...],
    output: str,
    per: Any,
    models: ModelOptions,
    drafts: DraftOptions,
    sampler: SamplerOptions,
    **options: Any,
) -> int:
    """Answer the prompts in INPUT...: text files, JSONL (OpenAI's batch format too), CSV, folders, globs, - for stdin.

    The same command goes on where an interrupted one stopped.
    """
    template = _template(options["template"])
    reading = Reading(
        per, options["max_input"], options["encoding_errors"], template, options["column"]
    )
    sources = find_sources(inputs)
    model = Path(models.model or "default").stem
    flags = {"counts": options["counts"], "overwrite": options["overwrite"], "model": model}
    out = open_output(output, sources, **flags)
    records = list(read_sources(sources, reading))
    if not records:
        click.echo("no records in the inputs: nothing to do", err=True)
        return 0
    retry = options["retry_failed"]
    with (
        _answerer(models, drafts, sampler, options) as answerer,
        FileRun(answerer, records, out, per, retry_failed=retry) as run,
    ):
        code = _answer(answerer, run)
        if run.complete:
            click.echo(f"{output} has all {len(records)} records already", err=True)
        _print(run.summary, answerer.stats(), as_json=options["as_json"])
    return code


def _answer(answerer: Any, run: FileRun) -> int:
    """Run to the end or to a signal; the exit code."""
    with interruptible(answerer.cancel, SIGNALS) as signals:
        try:
            with batch_progress(run.summary) as report:
                run.answer(report)
        except Cancelled:
            left = run.summary.records - run.summary.kept - run.summary.done
            click.echo(
                f"stopped with {left} of {run.summary.records} records to do; the same command goes on from here",
                err=True,
            )
            return 128 + (signals[0] if signals else signal.SIGINT)
        run.assemble()
    return FAILED_ITEMS if run.summary.failed else 0


def _template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", "name a text file") from None
    return utf8(data, str(path)).removesuffix("\n")


def _answerer(
    models: ModelOptions, drafts: DraftOptions, sampler: SamplerOptions, options: Mapping[str, Any]
) -> Any:
    """The `Batch` that the options describe, or one that spreads the work over Ray."""
    settings = Settings(
        sampler.sampling(seed=0),  # the same command gives the same answers
        drafts.rule,
        options["max_tokens"],
        options["system"],
        options["stop"],
        options["raw"],
    )
    found = models.find(workers=_here(options))
    arguments = {
        **found.arguments, "length": drafts.length, "draft_max": drafts.draft_max, "settings": settings,
        "parallel": options["parallel"], "exact": options["exact"],
    }  # fmt: skip
    if options["engine"] == "ray":
        from pyspec.batch.ray import RayBatch  # noqa: PLC0415 - an extra that few install

        return RayBatch(str(found.path), workers=options["workers"], **arguments)
    return Batch(str(found.path), **arguments)


def _here(options: Mapping[str, Any]) -> int:
    """Workers that share this machine's cores."""
    local = options["engine"] == "ray" and "RAY_ADDRESS" not in os.environ
    return int(options["workers"]) if local else 1


def _print(summary: RunProgress, stats: dict[str, Any], *, as_json: bool) -> None:
    facts = {**vars(summary), **stats}
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
    else:
        show_summary(facts)
