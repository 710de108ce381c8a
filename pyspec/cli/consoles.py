"""Consoles of the commands, with tables and progress on them: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pyspec.screen.display import Screen
from pyspec.screen.tables import TextTable, print_table
from pyspec.screen.words import safe


def stdout_console() -> Console:
    """Return the console for tables and figures. Piped output is not wrapped, so that scripts can read it."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=240)


def print_listing(
    head: Sequence[str], rows: Iterable[Sequence[str]], first: Sequence[str], needed: int
) -> None:
    """Print one line per model. A narrow terminal gets the leading columns of `first` that fit, at least `needed`.

    A column of which no row says anything is left out.
    """
    cells = [[safe(cell) for cell in row] for row in rows]
    kept = [i for i in range(len(head)) if not cells or any(row[i] not in _EMPTY for row in cells)]
    shown = [head[i] for i in kept]
    table = TextTable(
        shown,
        [[row[i] for i in kept] for row in cells],
        [name for name in shown if name not in _FIGURES],
        [name for name in first if name in shown],
        sum(name in shown for name in first[:needed]),
    )
    print_table(table, stdout_console(), markdown=False)


_EMPTY = ("", "-")
_FIGURES = ("GB", "GB in memory", "share", "downloads")


def console_of(color: str, *, stderr: bool = False) -> Console:
    """Return the console for answers or notes. color: auto, always or never, as in `--color`."""
    wanted = {"always": True, "never": False}.get(color)
    no_color = None if wanted is None else not wanted
    return Console(
        stderr=stderr, highlight=False, emoji=False, force_terminal=wanted, no_color=no_color
    )


def screen_of(color: str) -> Screen:
    """Return a screen with answers on stdout and notes on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a missing character must not end the program
            stream.reconfigure(errors="replace")
    return Screen(console_of(color), console_of(color, stderr=True))


LINE_S = 10.0
"""Seconds between progress lines without a terminal."""


@contextmanager
def run_progress(console: Console | None = None) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that shows progress, (done, total, what): a bar on a terminal, elsewhere a line now and then.

    The time before the first step, such as for loading models, does not count in the rate.
    """
    console = console or Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    times = (TimeElapsedColumn(), "passed,", TimeRemainingColumn(compact=True), "left")
    bar = Progress(*columns, *times, console=console, transient=True, get_time=monotonic,
                   speed_estimate_period=3600)  # fmt: skip
    task = bar.add_task("", total=None)
    last = monotonic()

    def show(done: int, total: int, what: str) -> None:
        nonlocal last
        what = safe(what)
        bar.update(task, completed=done, total=total or None, description=what)
        if not console.is_terminal and monotonic() - last >= LINE_S:
            last = monotonic()
            left = bar.tasks[0].time_remaining
            more = f", about {left:.0f} s left" if left else ""
            count = f"{done}/{total} " if total else ""
            console.print(f"{count}{what}{more}", markup=False, highlight=False)

    with bar if console.is_terminal else nullcontext():
        yield show
