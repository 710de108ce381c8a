"""How text appears on a terminal: wrapped, painted, and with progress before it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
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


_WIDE = (
    "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001faff\U00020000-\U0003fffd"
)
"""Characters of scripts without spaces, and emoji: a line may break before and after each of them."""

_PARTS = re.compile(rf"\n|[^\S\n]+|[{_WIDE}]|[^\s{_WIDE}]+")
_BREAKS = re.compile(rf"\s*|[{_WIDE}]")


class Wrapper:
    """Breaks lines between words. The newest word is held back until it is known to be complete.

    width: cells of a line. A word wider than that is left for the terminal to break. In scripts without spaces, each wide
    character counts as a word.
    """

    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._column = 0
        self._held = ""
        self._gap = ""

    def push(self, text: str) -> str:
        """What can be shown now."""
        self._held += text
        parts = _PARTS.findall(self._held)
        self._held = "" if _BREAKS.fullmatch(parts[-1] if parts else "") else parts.pop()
        return "".join(map(self._place, parts))

    def finish(self) -> str:
        """What was held back, at the end of the text."""
        rest, self._held = self._held, ""
        return self._place(rest) if rest else ""

    def _place(self, part: str) -> str:
        if part == "\n":
            self._column, self._gap = 0, ""
            return part
        if part.isspace():  # shown before the next word, or not at all at a line break
            self._gap += part
            return ""
        gap, self._gap = self._gap, ""
        size = cell_len(part)
        if self._column and self._column + _cells(gap, self._column) + size > self._width:
            self._column = size
            return "\n" + part
        self._column += _cells(gap, self._column) + size
        if self._column > self._width:
            self._column %= self._width
        return gap + part


def folded(text: str, width: int) -> list[str]:
    """Break a text into lines of `width` cells between words. A wider word stays whole."""
    wrapper = Wrapper(width)
    return (wrapper.push(text) + wrapper.finish()).split("\n")


def _cells(gap: str, column: int) -> int:
    at = column
    for char in gap:
        at += 8 - at % 8 if char == "\t" else 1
    return at - column


@contextmanager
def _held_back() -> Iterator[list[str]]:
    """Collect log messages, so that none appears in the middle of an answer."""
    messages: list[str] = []
    log, holder = logging.getLogger("pyspec"), logging.Handler(logging.WARNING)
    holder.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    before = log.propagate
    log.addHandler(holder)
    log.propagate = False
    try:
        yield messages
    finally:
        log.removeHandler(holder)
        log.propagate = before


Paint = Callable[[str], Iterable[tuple[str, str]]]
"""Splits shown text into parts, each with a rich style."""


class Screen:
    """Where the chat writes: answers and results of commands to `out`, everything else to `err`."""

    def __init__(self, out: Console, err: Console) -> None:
        self.out = out
        """Where answers go."""
        self._err = err
        self.progress = PromptStatus(err)

    def say(self, text: str) -> None:
        """Print a line that a command was asked to show."""
        self.out.file.write(safe(text) + "\n")
        self.out.file.flush()

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print names and values, one pair per line.

        On a terminal, values are folded; they stand below names that take more than two fifths of a line, and below all names
        where less than 20 cells would be left.
        """
        pairs, width, terminal = list(rows), self.out.width, self.out.is_terminal
        sizes = [cell_len(name) for name, _ in pairs]
        column = max((size for size in sizes if not terminal or size <= width * 2 // 5), default=1)
        start = " " * (column + 1)
        if terminal and width <= column + 20:
            column, start = 0, "  "
        for (name, value), size in zip(pairs, sizes, strict=True):
            lines = folded(value, width - len(start)) if terminal else [value]
            first = f"{name}\n{start}" if size > column else f"{name:<{column}} "
            self.say(first + f"\n{start}".join(lines))

    def note(self, text: str) -> None:
        """Print a dim line about what happened."""
        self._err.print(Text(safe(text), "dim"), soft_wrap=not self._err.is_terminal)

    def error(self, text: str) -> None:
        """Print a sentence about what went wrong."""
        self._err.print(Text(safe(text), "red"), soft_wrap=not self._err.is_terminal)

    @contextmanager
    def answering(
        self, *, wrap: bool = True, paint: Paint | None = None
    ) -> Iterator[Callable[[str], None]]:
        """Yields a function that writes pieces of one answer; ends its last line. wrap: break lines between words on a terminal.

        paint: gives parts of the shown text their styles, in order.
        """
        ends = ["\n"]
        wrapper = Wrapper(self.out.width) if wrap and self.out.is_terminal else None

        def put(shown: str) -> None:
            if shown:
                ends[0] = shown[-1]
                if paint is None:
                    self.out.file.write(shown)
                for part, style in paint(shown) if paint else ():
                    self.out.out(part, style=style or None, highlight=False, end="")
                self.out.file.flush()

        def write(text: str) -> None:
            self.progress.stop()
            put(wrapper.push(safe(text)) if wrapper else safe(text))

        with _held_back() as warnings:
            try:
                yield write
            finally:
                self.progress.stop()
                if wrapper:
                    put(wrapper.finish())
                if ends[0] != "\n":
                    self.out.file.write("\n")
                    self.out.file.flush()
        for warning in warnings:
            self.note(warning)

    @contextmanager
    def replying(
        self, *, wrap: bool = True, paint: Paint | None = None, reasoning: bool = True
    ) -> Iterator[Callable[[str, str], None]]:
        """Yields a function that writes an answer's reasoning (dimmed, followed by an empty line) and its text, like `answering`.

        reasoning: whether to show it.
        """
        shown: list[bool] = []
        with ExitStack() as stack:

            def write(thought: str, text: str) -> None:
                for is_thought, part in ((True, thought if reasoning else ""), (False, text)):
                    if part:
                        begin(is_thought)(part)

            def begin(is_thought: bool) -> Callable[[str], None]:
                if not shown or shown[-1] != is_thought:
                    stack.close()
                    if shown:
                        self.out.file.write("\n")
                    shown.append(is_thought)
                    dims = is_thought and paint is None
                    style = (lambda part: [(part, "dim")]) if dims else paint
                    put[:] = [stack.enter_context(self.answering(wrap=wrap, paint=style))]
                return put[0]

            put: list[Callable[[str], None]] = []
            try:
                yield write
            finally:
                self.progress.stop()


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
