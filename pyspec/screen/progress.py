"""What shows that something takes a while: a bar or a moving line on a terminal, elsewhere plain lines or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic

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
from rich.status import Status
from rich.text import Text

from pyspec.hub.locate import resolve
from pyspec.screen.words import safe

_LONG_PROMPT = 512  # tokens from which progress of reading is worth showing


class PromptStatus:
    """Shows how far a long prompt is read, on a terminal only, until `stop`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def __call__(self, done: int, total: int) -> None:
        """Tokens read so far, and the total."""
        short = total - done < _LONG_PROMPT and self._status is None  # the rest was read before
        if short or not self._console.is_terminal:
            return
        message = f"reading the prompt, {done} of {total} tokens"
        if self._status is None:
            self._status = self._console.status(message)
            self._status.start()
        self._status.update(message)

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show on a terminal what is being done, while it lasts."""
    console = Console(stderr=True)
    # a str would be read as markup, and lose brackets
    with console.status(Text(safe(what))) if console.is_terminal else nullcontext():
        yield


@contextmanager
def store_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields the callback for `resolve`, `fetch` and `convert`.

    The bar appears with the first call, on a terminal; elsewhere each new activity is one line, so logs show what took the
    time. Nothing appears if nothing has to be done.
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


def file_of(model: str | os.PathLike[str]) -> str:
    """The file for a path or a name; raises ModelNotFound if it is neither."""
    if Path(model).exists():
        return str(model)
    with store_progress() as progress:
        return str(resolve(model, progress))


LINE_S = 10.0  # seconds between progress lines without a terminal


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
