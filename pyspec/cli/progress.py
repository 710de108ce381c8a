"""A progress bar on stderr for what the store does: fetching, converting, waiting."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pyspec.display import safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspec.store.fetch import Progress as Callback

__all__ = ["busy", "store_progress"]


@contextmanager
def store_progress(console: Console | None = None) -> Iterator[Callback]:
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
