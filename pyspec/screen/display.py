"""How text appears on a terminal: wrapped, painted, and in tables."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyspec.screen.progress import PromptStatus
from pyspec.screen.words import safe

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
        """Print names and values, one pair per line; on a terminal both are folded in their columns."""
        if self.out.is_terminal:
            grid = Table.grid(padding=(0, 1))
            for name, value in rows:
                grid.add_row(Text(safe(name)), Text(safe(value)))
            self.out.print(grid)
            return
        pairs = list(rows)
        width = max((cell_len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.say(f"{name:<{width}} {value}")

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


_WIDEST = 1000
"""Width of a pipe: no line is folded, so that scripts can read it."""


def print_listing(
    head: Sequence[str], rows: Iterable[Sequence[str]], first: Sequence[str], needed: int
) -> None:
    """Print one line per model. A terminal gets the leading columns of `first` that fit, at least `needed`.

    Where even these do not fit, the first one is folded; the column `what` is folded from 16 cells on. A column of which no row
    says anything is left out.
    """
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDEST
    width = console.width
    columns = dict(zip(head, zip(head, *([safe(cell) for cell in row] for row in rows)), strict=True))
    sizes = {name: max(map(cell_len, column)) + 2 for name, column in columns.items()}
    kept: list[str] = []
    for name in first:
        size = min(sizes[name], _LEAST) if name == _FOLDED else sizes[name]
        said = len(columns[name]) == 1 or not {*columns[name][1:]} <= {"", "-"}
        if said and (size <= width or name in first[:needed]):
            kept.append(name)
            width -= size
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in filter(kept.__contains__, head):
        foldable = name in (first[0], _FOLDED)
        table.add_column(
            name, justify="right" if name in _FIGURES else "left", no_wrap=not foldable, overflow="fold"
        )
    for row in zip(*(columns[name][1:] for name in head if name in kept)):
        table.add_row(*map(Text, row))
    console.print(table)


_FOLDED, _LEAST = "what", 18
_FIGURES = ("GB", "GB in memory", "share", "downloads")
