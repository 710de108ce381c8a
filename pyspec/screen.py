"""What a terminal shows: answers, wrapped and painted by the source of their tokens, tables, and what takes a while."""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from time import monotonic

import click
from rich.cells import cell_len
from rich.console import Console as RichConsole
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
from pyspec.text.parts import (
    Piece,
    Result,
    Source,
    Token,
    counted,
    safe,
    speed_sentence,
    stats_line,
)

# -- what takes a while: a bar or a moving line on a terminal, elsewhere plain lines or nothing ------------------------

_LONG_PROMPT = 512  # tokens from which progress of reading is worth showing
LINE_S = 10.0  # seconds between progress lines without a terminal
_WIDEST = 10_000  # width of a pipe: no line is folded, so that scripts can read it


class Console(RichConsole):
    """Leaves a pipe that closes to the command, where rich's own would exit by 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


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
    said, sizes = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[done]}")
    columns = said, BarColumn(), sizes, TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=True)
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


# -- answers and tables ------------------------------------------------------------------------------------------------

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
        before = len((" " * self._column + gap).expandtabs()) - self._column
        if self._column and self._column + before + size > self._width:
            self._column = size
            return "\n" + part
        self._column += before + size
        if self._column > self._width:
            self._column %= self._width
        return gap + part


class Screen:
    """Where the chat writes: answers and results of commands to `out`, everything else to `err`."""

    def __init__(self, out: Console, err: Console) -> None:
        self.out, self._err, self.progress = out, err, PromptStatus(err)

    def say(self, text: str) -> None:
        """Print a line that a command was asked to show."""
        self.out.file.write(safe(text) + "\n")
        self.out.file.flush()

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print names and values. A terminal gets values folded beside or below the names, a pipe one pair per line."""
        width = self.out.width if self.out.is_terminal else _WIDEST
        formatter = click.HelpFormatter(width=width)
        formatter.write_dl(rows, col_max=max(1, width // 2 - 4), col_spacing=1)
        self.say(formatter.getvalue().rstrip("\n"))

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line about what happened, or in red about what went wrong."""
        self._err.print(Text(safe(text), style), soft_wrap=not self._err.is_terminal)

    def stats(self, answer: Result, *, counts: bool) -> None:
        """Say how fast an answer came, and with `counts` what was drafted; nothing if nothing was decoded."""
        if answer.speculation.get("rounds"):
            self.note(speed_sentence(answer.speculation, answer.rate))
            if counts:
                self.note(stats_line(answer.speculation, answer.rate))

    @contextmanager
    def replying(
        self, *, wrap: bool = True, reasoning: bool = True, tokens: Bytes | None = None
    ) -> Iterator[Callable[[Piece], None]]:
        """Yields a function that writes the pieces of one answer; ends its last line.

        wrap: break lines between words on a terminal. reasoning: whether to show it, dimmed and followed by an empty line.
        tokens: returns the bytes of a token; with it, all is painted by source, see `TokenPaint`.
        """
        paint = None if tokens is None else TokenPaint(tokens)
        reply = _Reply(self.out, paint, wrap=wrap and self.out.is_terminal)

        def write(piece: Piece) -> None:
            self.progress.stop()
            if paint is not None:
                paint.take(piece.tokens)
            reply.write(piece.reasoning if reasoning else "", dim=True)
            reply.write(piece.text, dim=False)

        try:
            yield write
        finally:
            self.progress.stop()
            reply.finish()


class _Reply:
    """One answer on a console: its reasoning and its text, with an empty line between."""

    def __init__(self, out: Console, paint: TokenPaint | None, *, wrap: bool) -> None:
        self._out, self._paint, self._wrap = out, paint, wrap
        self._wrapper = Wrapper(out.width)
        self._dim: bool | None = None  # whether the last part was reasoning
        self._end = "\n"

    def write(self, text: str, *, dim: bool) -> None:
        if not text:
            return
        if self._dim not in (None, dim):
            self.finish()
            self._out.file.write("\n")
        self._dim = dim
        self._put(self._wrapper.push(safe(text)) if self._wrap else safe(text))

    def finish(self) -> None:
        """Write what is held back, and end the line."""
        self._put(self._wrapper.finish())
        if self._end != "\n":
            self._out.file.write("\n")
            self._out.file.flush()
        self._wrapper, self._end = Wrapper(self._out.width), "\n"

    def _put(self, text: str) -> None:
        if not text:
            return
        self._end = text[-1]
        dimmed = [(text, "dim")] if self._dim else None
        parts = self._paint(text) if self._paint else dimmed
        if parts is None:
            self._out.file.write(text)
        for part, style in parts or ():
            self._out.out(part, style=style or None, highlight=False, end="")
        self._out.file.flush()


def new_screen() -> Screen:
    """Return a screen with answers on stdout and notes on stderr; NO_COLOR and FORCE_COLOR say whether in colour."""
    widths = (None if stream.isatty() else _WIDEST for stream in (sys.stdout, sys.stderr))
    out, err = (
        Console(highlight=False, emoji=False, stderr=stderr, width=width)
        for stderr, width in zip((False, True), widths)
    )
    return Screen(out, err)


def print_listing(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print one line per model, whole names and figures in columns; a terminal breaks lines that are longer than it."""
    console = Console(highlight=False, emoji=False)
    lines = [[safe(cell).replace("\n", " ") for cell in row] for row in (head, *rows)]
    sizes = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        gaps = [" " * (size - cell_len(cell)) for size, cell in zip(sizes, line)]
        cells = [gap + c if name in _FIGURES else c + gap for name, gap, c in zip(head, gaps, line)]
        console.print(Text("  ".join(cells).rstrip(), "" if number else "bold"), soft_wrap=True)


_FIGURES = ("GB", "GB in memory", "share")

# -- tokens by source ----------------------------------------------------------------------------------------------------

Bytes = Callable[[int], bytes]  # returns the bytes of a token

_SHOWN = {
    Source.TARGET: ("", "the model's own"),
    Source.ACCEPTED: ("green", "drafted and right"),
    Source.RELAXED: ("bold yellow", "drafted and close"),
}
"""Style and meaning of each source."""


class TokenPaint:
    """Colours the text of an answer by where its tokens came from.

    `take` the tokens before their text is shown. The text may differ in white space, as where lines are broken, and may lack
    marks.
    """

    def __init__(self, piece: Bytes) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._sources: deque[tuple[str, Source]] = deque()  # of characters still to be shown

    def take(self, tokens: Iterable[Token]) -> None:
        """Note the tokens of a piece. A character split over tokens belongs to the last of them."""
        for token in tokens:
            text = safe(self._decoder.decode(self._piece(token.id)))
            self._sources.extend((char, token.source) for char in text if not char.isspace())

    def __call__(self, shown: str) -> Iterator[tuple[str, str]]:
        """Parts of shown text with their styles."""
        for source, chars in groupby(shown, self._source):
            yield "".join(chars), _SHOWN[source][0]

    def _source(self, char: str) -> Source:
        if char.isspace():  # belongs to the word after it, as in the tokens
            return self._sources[0][1] if self._sources and char != "\n" else Source.TARGET
        while self._sources:  # skip what is not shown, such as a mark
            first, source = self._sources.popleft()
            if first == char:
                return source
        return Source.TARGET


def print_legend(console: Console, tokens: Sequence[Token]) -> None:
    """Print what the colours of a painted answer mean."""
    lines = Text("\n")
    for source, (style, meaning) in _SHOWN.items():
        if count := sum(token.source is source for token in tokens):
            lines.append("; " if len(lines) > 1 else "")
            lines.append(source.label, style)
            lines.append(f": {counted(count, 'token')}, {meaning}")
    console.print(lines, soft_wrap=not console.is_terminal, end="\n" if tokens else "")
