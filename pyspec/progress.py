"""What takes a while says so on stderr: a bar for files, a line for the rest; nothing where there is nothing to wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pyspec.display import safe


@contextmanager
def store_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Gives the callback that `resolve`, `fetch` and `convert` take.

    The bar appears with the first call, on a terminal only; elsewhere each new activity is one
    line, so that logs say what took the time. Nothing appears when nothing has to be done.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
    )
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def show(what: str, done: int, total: int) -> None:
        what = safe(what)
        if what not in tasks:
            if console.is_terminal or console.is_jupyter:
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
def busy(what: str, after_s: float = 0.0) -> Iterator[None]:
    """Says what takes a moment while it does, on a terminal only, once it took so many seconds.

    Inside another one it says nothing: a terminal has one such line.
    """
    console = Console(stderr=True)
    if _said or not console.is_terminal:
        yield
        return
    _said.append(what)
    status = console.status(safe(what))
    timer = Timer(after_s, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
        _said.clear()


_said: list[str] = []
"""What the terminal says just now."""
