"""What the measuring commands share: their options, a progress bar, the command as published."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pyspec.cli.command import option, stack
from pyspec.measure.questions import human_eval, load_questions, select
from pyspec.measure.run import Options
from pyspec.rules import Margin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    names = [Path(word).name if os.sep in word and "=" not in word else word for word in words]
    return " ".join(["pyspec", *map(shlex.quote, names)])


@contextmanager
def run_progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr where that is a terminal; elsewhere a line now and then."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task("", total=None)

    def show(done: int, total: int, what: str) -> None:
        if console.is_terminal:
            bar.update(task, completed=done, total=total or None, description=what)
        elif total and done % 50 == 0:
            click.echo(f"{done}/{total} {what}", err=True)

    with bar if console.is_terminal else _nothing():
        yield show


@contextmanager
def _nothing() -> Iterator[None]:
    yield
