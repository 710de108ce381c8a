"""`pyspec bench` and `pyspec quality`: questions answered in several modes, one page of results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspec.cli.command import Subcommand, option, stack
from pyspec.cli.options import find_models, model_options, open_model
from pyspec.cli.progress import run_progress
from pyspec.measure.bench import Task, run_bench
from pyspec.measure.modes import Options, parse_modes
from pyspec.measure.quality import WAYS, QualityResults, answer_all, judge, verdict
from pyspec.measure.quality_report import save_quality, way_table
from pyspec.measure.questions import human_eval, load_questions, select
from pyspec.measure.records import published
from pyspec.measure.report import speed_table
from pyspec.measure.sides import Sides, parse_ways
from pyspec.rules import Margin
from pyspec.store.machine import default_threads

if TYPE_CHECKING:
    from pathlib import Path

    from pyspec.measure.questions import Question


FILE = click.Path(path_type=Path, dir_okay=False)

MEASURED: dict[str, Any] = {
    "verify": "margin", "theta": Margin.theta, "gap": Margin.gap, "budget": None, "cap": None,
    "length": "auto", "draft_max": None,
}  # fmt: skip
"""What each mode sets for itself, as `open_model` wants to have it."""


def question_options(command: Any) -> Any:
    """Which questions, and how each is answered."""
    return _QUESTIONS(command)


_COUNT = click.IntRange(min=1)
_QUESTIONS = stack(
    option("--out", group="Measuring", type=click.Path(path_type=Path, file_okay=False), required=True,
           help="Folder of the results; a run that was interrupted goes on there."),
    option("--questions", group="Measuring", type=FILE, help="Spec-Bench JSONL; else the shipped set."),
    option("--limit", group="Measuring", type=_COUNT, help="Questions of each category at most."),
    option("--every", group="Measuring", type=_COUNT, default=1, help="Each N-th question of the file only."),
    option("--category", group="Measuring", multiple=True, help="Only this one; may be given again."),
    option("--human-eval", group="Measuring", type=_COUNT, help="Add so many HumanEval problems."),
    option("-n", "--max-tokens", group="Measuring", type=click.IntRange(min=2), default=128, show_default=True,
           help="Most tokens of an answer."),
    option("--temp", group="Measuring", type=click.FloatRange(min=0.0), default=0.0, show_default=True,
           help="Temperature; 0 takes the likeliest token."),
    option("--seed", group="Measuring", type=int, default=1, show_default=True, help="Seed of the sampler."),
    option("--repeat", group="Measuring", type=_COUNT, default=1, show_default=True, help="Runs a question."),
    option("--warm-up", group="Measuring", type=click.IntRange(min=0), default=3, show_default=True,
           help="Answers before any is timed."),
    option("--tie", group="Measuring", type=float, help="Near-tie, nats; measured if not given."),
)  # fmt: skip


def chosen_questions(options: dict[str, Any]) -> list[Question]:
    """The questions that the options name."""
    known = load_questions(options["questions"])
    out = select(known, options["limit"], options["category"], options["every"])
    return [*out, *(human_eval(options["human_eval"]) if options["human_eval"] else [])]


def run_options(options: dict[str, Any]) -> Options:
    """How each question is answered."""
    return Options(
        options["max_tokens"], options["temp"], options["seed"], options["repeat"],
        options["warm_up"],
    )  # fmt: skip


def command_line() -> str:
    """The command as it may be published: folders of this machine and the page's own text are left out."""
    words = sys.argv[1:]
    if "--about" in words:
        at = words.index("--about")
        words = [*words[:at], *words[at + 2 :]]
    return published("pyspec", words)


@click.command(cls=Subcommand)
@model_options
@question_options
@click.option("--modes", default="plain,strict,margin", show_default=True, help="Comma-separated.")
@click.option(
    "--peers", default="", help="llama_cpp[-lookup], server[-draft[:K]|-eagle3[:K]|-ngram], commas."
)
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
