"""Tables on stdout, and progress on stderr: a bar on a terminal, plain lines elsewhere; of fetching, measuring and batches."""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from pyspec.display import safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspec.batch.files import RunProgress
    from pyspec.batch.records import Result
    from pyspec.store.fetch import Progress as StoreProgress


def stdout_console() -> Console:
    """For tables and figures. Piped output keeps whole lines: a script that reads a table must not find names folded."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=240)


@contextmanager
def store_progress(console: Console | None = None) -> Iterator[StoreProgress]:
    """Gives the callback that `resolve`, `fetch` and `convert` take.

    The bar appears with the first call, on a terminal only; elsewhere each new activity is one
    line, so that logs say what took the time. Nothing appears when nothing has to be done.
    """
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            if console.is_terminal:
                bar.start()
            else:
                console.print(f"{what} ...", markup=False, highlight=False)
            tasks[what] = bar.add_task(what, total=total or None, done="")
        count = f"{done / 1e6:.0f}/{total / 1e6:.0f} MB" if total >= 1e6 else f"{done}/{total}"
        bar.update(tasks[what], completed=done, total=total or None, done=count if total else "")

    try:
        yield show
    finally:
        if bar.live.is_started:  # stopping an idle bar prints an empty line
            bar.stop()


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Says what takes a moment while it does, on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(safe(what)):
        yield


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


LINE_S = 10.0
"""Seconds between two lines where there is no terminal."""


_SHOWN = (
    *("tokens", "seconds", "tokens_per_second", "accepted", "verified", "relaxed"),
    "parallel",
)


class _Rate:
    """Tokens a second and accepted drafts, from results as they come."""

    def __init__(self) -> None:
        self._start = monotonic()
        self.tokens = self.verified = self.accepted = 0

    def add(self, result: Result) -> None:
        self.tokens += result.usage.completion_tokens
        self.verified += result.speculation.get("verified", 0)
        self.accepted += result.speculation.get("accepted", 0)

    def __str__(self) -> str:
        seconds = max(1e-3, monotonic() - self._start)
        parts = [f"{self.tokens / seconds:.1f} tok/s"]
        if self.verified:
            parts.append(f"accepted {100 * self.accepted / self.verified:.0f} %")
        return ", ".join(parts)


@contextmanager
def batch_progress(
    summary: RunProgress, console: Console | None = None
) -> Iterator[Callable[[Result], None]]:
    """Gives the function that hears of each result."""
    console = console or Console(stderr=True)
    if summary.kept:
        console.print(
            f"{summary.kept} of {summary.records} records are done already",
            markup=False,
            highlight=False,
        )
    show = _bar if console.is_terminal else _lines
    with show(summary, console) as report:
        yield report


@contextmanager
def _bar(summary: RunProgress, console: Console) -> Iterator[Callable[[Result], None]]:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    bar = Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
    )
    rate = _Rate()
    with bar:
        task = bar.add_task("", total=summary.records, completed=summary.kept, rate="")

        def report(result: Result) -> None:
            rate.add(result)
            bar.update(task, advance=1, rate=str(rate))

        yield report


@contextmanager
def _lines(summary: RunProgress, console: Console) -> Iterator[Callable[[Result], None]]:
    rate = _Rate()
    last, first = monotonic(), 0.0

    def report(result: Result) -> None:
        nonlocal last, first
        rate.add(result)
        now = monotonic()
        first = first or now
        if now - last < LINE_S:
            return
        last = now
        left = summary.records - summary.kept - summary.done
        # loading models and starting workers, before the first result, is no part of the pace
        more = (
            f", about {(now - first) * left / max(1, summary.done - 1):.0f} s left"
            if now > first
            else ""
        )
        console.print(
            f"{summary.kept + summary.done}/{summary.records} records, {rate}{more}",
            markup=False,
            highlight=False,
        )

    yield report


def _where(facts: Mapping[str, Any]) -> str:
    """What the sequences had: cells and beginnings of their own here, or workers elsewhere."""
    if "kv_cells" not in facts:
        return f"over {facts.get('workers', 1)} workers"
    return f"{facts['kv_cells']} KV cells, {facts.get('prefix_tokens', 0)} tokens shared"


def show_summary(facts: Mapping[str, Any], console: Console | None = None) -> None:
    """The table at the end."""
    console = console or Console(stderr=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    get = {**dict.fromkeys(_SHOWN, 0), **facts}.__getitem__
    rows = {
        "records": f"{get('done')} done, {get('kept')} before, {get('failed')} failed",
        "ended by": ", ".join(f"{reason} {n}" for reason, n in facts["reasons"].items()) or "-",
        "tokens": f"{get('tokens')} in {get('seconds'):.1f} s: {get('tokens_per_second'):.1f} tok/s",
        "drafts": f"{get('accepted')} of {get('verified')} verified tokens accepted, {get('relaxed')} relaxed",
        "at once": f"{get('parallel')} sequences, {_where(facts)}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table, highlight=False)
