"""`pyspec batch`: answers many prompts from files at once, and loses none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import click
from rich.text import Text

from pyspec.batch import Batch, Settings
from pyspec.batch.output import FileRun, RunProgress, open_output
from pyspec.batch.reading import MAX_RECORD, Per, Reading, find_sources, read_sources
from pyspec.cli.command import command, option, tell
from pyspec.cli.opening import exit_code, find, hush_llama, interruptible
from pyspec.cli.options import (
    DraftOptions,
    EngineOptions,
    MemoryOptions,
    ModelOptions,
    SamplerOptions,
    SystemOptions,
)
from pyspec.engine.contexts import MAX_SEQUENCES
from pyspec.errors import Cancelled
from pyspec.hub.sources import load_manifest
from pyspec.machine.files import read_text
from pyspec.screen import Console, Screen, run_progress
from pyspec.serve import served_name
from pyspec.text.parts import RecordResult, safe

FAILED_ITEMS = 3  # exit code of a batch that finished with failed records

EXAMPLES = [
    ("pyspec batch questions.txt -o answers.jsonl", "Each line of the file is a prompt"),
    ("pyspec batch table.csv --column question -o answers.csv", "A column of a CSV file"),
    ("pyspec batch requests.jsonl -o results.jsonl", "JSON lines, including OpenAI's batch format"),
    ("pyspec batch notes/ --per file --template sum.txt -o summaries/", "One summary per file"),
]


def _template(path: str) -> str:
    return read_text(Path(path)).removesuffix("\n")


@dataclass(frozen=True)
class InputOptions(Reading):
    """How records are read."""

    # fmt: off
    per: Per = option("Input", "--per", type=click.Choice(["line", "file", "paragraph"]), default="line",
        help="What of a text file is a record.")
    limit: int = option("Input", "--max-input", type=click.IntRange(min=1), default=MAX_RECORD,
        help="Largest record, bytes.")
    errors: Literal["strict", "replace"] = option("Input", "--encoding-errors",
        type=click.Choice(["strict", "replace"]), default="strict",
        help="What is not UTF-8 fails, or is mended.")
    template: str | None = option("Input", "--template", type=_template, metavar="FILE",
        help="File with {text} where each input goes.")
    column: str | None = option("Input", "--column", metavar="NAME",
        help="Column of the prompts in CSV files.")
    # fmt: on


@dataclass(frozen=True)
class BatchOptions(MemoryOptions, SystemOptions):
    """How to answer, and where to run."""

    # fmt: off
    max_tokens: int = option("Answers", "-n", "--max-tokens", type=click.IntRange(0, 2**31 - 1), default=512,
        help="Longest answer, tokens.")
    raw: bool = option("Answers", "--raw", is_flag=True, help="Leave out the chat template.")
    stop: tuple[str, ...] = option("Answers", "--stop", multiple=True,
        metavar="TEXT", help="Stop before this text; repeat it for more.")
    timeout: float | None = option("Answers", "--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
        help="An answer that takes longer fails.")
    reasoning_budget: int = option("Answers", "--reasoning-budget", metavar="N", type=click.IntRange(-1, 2**31 - 1), default=-1,
        show_default=False, help="End the reasoning after N tokens.")
    exact: bool = option("Answers", "--exact", is_flag=True,
        help="Each text as if alone; turns drafts off.")
    parallel: int | None = option("Machine", "--parallel", type=click.IntRange(1, MAX_SEQUENCES),
        help="Answers at once; if not given, what is best here.")
    # fmt: on

    def open(
        self,
        models: ModelOptions,
        drafts: DraftOptions,
        sampler: SamplerOptions,
        engine: EngineOptions,
    ) -> Batch:
        hush_llama(engine.verbose)
        sampler.sampling()  # refuses impossible numbers before anything is fetched
        rule = drafts.rule
        path, found = find(models)
        own = sampler.suggested(path, models.model or "")
        # a fixed seed: the same command gives the same answers
        settings = Settings(
            sampler.sampling(0, own), rule, self.max_tokens, self.system, self.stop, self.raw, self.timeout,
            None if self.reasoning_budget < 0 else self.reasoning_budget,
        )  # fmt: skip
        return Batch(
            str(path), length=drafts.length, draft_max=drafts.draft_max, settings=settings, parallel=self.parallel,
            exact=self.exact, memory=self.memory, prompt_cache=self.prompt_cache, **{**found, **engine.arguments},
        )  # fmt: skip


@dataclass(frozen=True)
class ResultOptions:
    """Where results go, and how to report them."""

    # fmt: off
    output: str = option("Output", "-o", "--output", required=True, metavar="OUT.jsonl|OUT.csv|DIR/",
        help="JSONL file, CSV file with the input's columns, or folder of texts.")
    overwrite: bool = option("Output", "--overwrite", is_flag=True, help="Replace what is at OUT.")
    retry_failed: bool = option("Output", "--retry-failed", is_flag=True, help="Retry records that failed.")
    with_prompt: bool = option("Output", "--with-prompt", is_flag=True,
        help="Add to each line what was asked.")
    as_json: bool = option("Output", "--json", is_flag=True, help="The summary as JSON on stdout.")
    # fmt: on


@command(examples=EXAMPLES)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
def batch(
    inputs: tuple[str, ...],
    results: ResultOptions,
    reading: InputOptions,
    wanted: BatchOptions,
    models: ModelOptions,
    drafts: DraftOptions,
    sampler: SamplerOptions,
    engine: EngineOptions,
) -> int:
    """Answer the prompts in INPUT...: text files, JSONL (including OpenAI's batch format), CSV, folders, globs, - for stdin.

    If a run is interrupted, run the same command again to resume.
    """
    sources = find_sources(inputs)
    out = open_output(
        results.output, sources, reading, overwrite=results.overwrite, prompts=results.with_prompt,
        model=served_name(models.model or load_manifest().default_target),
    )  # fmt: skip
    records = list(read_sources(sources, reading))
    with (
        wanted.open(models, drafts, sampler, engine) as answerer,
        FileRun(answerer, records, out, retry_failed=results.retry_failed) as run,
    ):

        def tell_once(placed: str) -> None:
            """Tell the first placement: larger contexts for later, longer records change little of it."""
            if placed:
                answerer.on_placed = lambda _: None
                tell(placed, err=True)

        answerer.on_placed = tell_once
        code = _answer(answerer, run)
        facts = {**vars(run.summary), **answerer.stats()}
        if results.as_json:
            tell(json.dumps(facts, ensure_ascii=False))
        elif run.complete:
            failed = f"; {run.summary.failed} failed, --retry-failed answers them again"
            more = failed if run.summary.failed else ""
            tell(f"{results.output} already has all {len(records)} records{more}", err=True)
        else:
            console = Console(stderr=True)
            Screen(console, console).table(_summary_rows(facts))
    return code


def _answer(answerer: Any, run: FileRun) -> int:
    with interruptible(answerer.cancel) as signals:
        try:
            with batch_progress(run.summary, run.output.most_named) as report:
                run.answer(report)
        except Cancelled:
            left = f"{run.summary.left} of {run.summary.records} records left"
            tell(f"stopped with {left}. Run the same command again to resume.", err=True)
            return exit_code(signals)
        run.assemble()
    return FAILED_ITEMS if run.summary.failed else 0


# -- progress and summary ----------------------------------------------------------------------------------------------


@contextmanager
def batch_progress(
    summary: RunProgress, most: int | None
) -> Iterator[Callable[[RecordResult], None]]:
    """Show progress, and name failed records, the first `most` of them; None for all."""
    before = summary.records - summary.left
    if 0 < before < summary.records:
        tell(f"{before} of {summary.records} records are already done", err=True)
    start, console, failed = monotonic(), Console(stderr=True), 0
    with run_progress(console) as show:

        def report(result: RecordResult) -> None:
            nonlocal failed
            if result.error is not None:
                failed += 1
                said = f"{result.id} failed: {result.error.message}"
                if most is not None and failed > most:
                    said = "more records failed; see the output"
                if most is None or failed <= most + 1:
                    console.print(Text(safe(said), "red"), soft_wrap=not console.is_terminal)
            rate = f"{summary.tokens / max(1e-3, monotonic() - start):.1f} tokens/s"
            show(summary.records - summary.left, summary.records, f"records, {rate}")

        yield report


def _summary_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the summary; without any for work that was not done."""
    counts = [("answered", "answered"), ("failed", "failed"), ("kept", "before")]
    parts = [f"{facts[key]} {word}" for key, word in counts if facts[key] or key == "answered"]
    yield "records", ", ".join(parts)
    if not facts["done"]:
        return
    yield "ended by", ", ".join(f"{n} {reason}" for reason, n in facts["reasons"].items())
    speed = "{tokens} in {seconds:.1f} s: {tokens_per_second:.1f} tokens/s"
    yield "tokens", speed.format_map(facts)
    checked = "{accepted} of {verified} checked tokens accepted"
    relaxed = ", {relaxed} relaxed" if facts["relaxed"] else ""
    yield "drafts", ((checked if facts["verified"] else "none checked") + relaxed).format_map(facts)
