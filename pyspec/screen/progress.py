"""Shows progress of long work on stderr: a bar for files, a line for other work, nothing if there is no wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from pyspec.hub.locate import resolve
from pyspec.screen.words import safe


@contextmanager
def store_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields the callback for `resolve`, `fetch` and `convert`.

    The bar appears with the first call, on a terminal or in a notebook; elsewhere each new activity is one line, so logs show
    what took the time. Nothing appears if nothing has to be done.
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
            if console.is_terminal or (console.is_jupyter and find_spec("ipywidgets")):
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


def file_of(model: str | os.PathLike[str]) -> str:
    """The file for a path or a name; raises ModelNotFound if it is neither."""
    if Path(model).exists():
        return str(model)
    with store_progress() as progress:
        return str(resolve(model, progress))


@contextmanager
def busy(what: str, after_s: float = 0.0) -> Iterator[None]:
    """Show what is being done once it has taken this long: on a terminal while it lasts, in a notebook as one line.

    A nested call shows nothing: a terminal has one such line.
    """
    console = Console(stderr=True)
    if _shown or not (console.is_terminal or console.is_jupyter):
        yield
        return
    _shown.append(what)
    show, hide = _line(console, safe(what))
    timer = Timer(after_s, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        hide()
        _shown.clear()


def _line(console: Console, what: str) -> tuple[Callable[[], None], Callable[[], None]]:
    if console.is_jupyter:  # a moving line needs ipywidgets there
        return partial(console.print, f"{what} ...", markup=False, highlight=False), lambda: None
    status = console.status(Text(what))  # a str would be read as markup, and lose brackets
    return status.start, status.stop


_shown: list[str] = []
"""What the terminal shows now."""
