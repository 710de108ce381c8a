"""What commands share of stdin, stdout, stderr and signals: joined prompts, tables, progress, and how an answer is interrupted.

Progress is a bar on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pyspec.chat import TWICE_S
from pyspec.cli.command import tell
from pyspec.display import Screen, safe
from pyspec.errors import InputTooLong, OptionError
from pyspec.store.files import utf8
from pyspec.tables import TextTable, print_table

_PATIENCE_S = 2.0
"""How long stdin may give nothing beside a prompt before that is said."""


def prompt_text(prompt: str | None, file: Path | None, limit: int) -> str:
    """The prompt, the file and what is piped to stdin, those that there are, with a blank line between.

    `-` as prompt or file is stdin. Raises OptionError where there is nothing, InputEncoding, or InputTooLong above
    `limit` bytes each.
    """
    dashes = (prompt == "-") + (str(file) == "-")
    from_file = file_text(file, limit) if file is not None and str(file) != "-" else None
    parts = [prompt if prompt != "-" else None, from_file]
    if dashes or _piped():
        if parts[0] or parts[1]:
            _say_waiting(sys.stdin.buffer)
        parts.append(_text(sys.stdin.buffer, limit, "stdin"))
    given = [part for part in parts if part is not None and part.strip()]
    if not given:
        raise OptionError(
            "there is no prompt", 'give one: pyspec generate "...", -f FILE, or a pipe to stdin'
        )
    return "\n\n".join([part.rstrip("\n") for part in given[:-1]] + given[-1:])


def _piped() -> bool:
    """Whether something may come; a terminal, or a device such as /dev/null, has nothing to say."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):  # no descriptor
        return False


def _say_waiting(stream: Any) -> None:
    """Wait for a first byte. Not by `select`, which on Windows takes sockets alone."""
    sentence = "waiting for the rest of the prompt on stdin (</dev/null for none)"
    timer = threading.Timer(_PATIENCE_S, tell, (sentence,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        stream.peek(1)
    finally:
        timer.cancel()


def file_text(path: Path, limit: int | None = None) -> str:
    """A text file. Raises OptionError where it cannot be read, InputEncoding, or InputTooLong above `limit` bytes."""
    try:
        with path.open("rb") as stream:
            return _text(stream, limit, str(path))
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{path} cannot be read: {reason}", "name a readable text file") from None


def _text(stream: BinaryIO, limit: int | None, name: str) -> str:
    """All of a stream, without BOM and CR at line ends."""
    data = stream.read(-1 if limit is None else limit + 1)
    if limit is not None and len(data) > limit:
        raise InputTooLong(f"{name} holds more than {limit} bytes", "raise --max-input")
    return utf8(data, name)


# -- tables and progress -----------------------------------------------------------------------------------------------


def stdout_console() -> Console:
    """For tables and figures. Piped output keeps whole lines: a script that reads a table must not find names folded."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=240)


def print_listing(
    head: Sequence[str], rows: Iterable[Sequence[str]], first: Sequence[str], needed: int
) -> None:
    """A line a model on stdout; a narrow terminal gets columns in the order of `first`, so many in any case."""
    words = [name for name in head if name not in ("GB", "share")]
    cells = [[safe(cell) for cell in row] for row in rows]
    print_table(TextTable(head, cells, words, first, needed), stdout_console(), markdown=False)


def console_of(color: str, *, stderr: bool = False) -> Console:
    """For answers and notes, as `--color` says: auto, always or never."""
    wanted = {"always": True, "never": False}.get(color)
    no_color = None if wanted is None else not wanted
    return Console(
        stderr=stderr, highlight=False, emoji=False, force_terminal=wanted, no_color=no_color
    )


def screen_of(color: str) -> Screen:
    """Answers on stdout, notes on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a character is no reason to end
            stream.reconfigure(errors="replace")
    return Screen(console_of(color), console_of(color, stderr=True))


LINE_S = 10.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def run_progress(console: Console | None = None) -> Iterator[Callable[[int, int, str], None]]:
    """Gives what is told how much is done, of how much, and what: a bar on a terminal, elsewhere a line now and then.

    What took place before the first was done, such as loading models, is no part of the pace.
    """
    console = console or Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
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
            console.print(f"{done}/{total} {what}{more}", markup=False, highlight=False)

    with bar if console.is_terminal else nullcontext():
        yield show


# -- signals -----------------------------------------------------------------------------------------------------------


BOTH = (signal.SIGINT, signal.SIGTERM, *([signal.SIGBREAK] if hasattr(signal, "SIGBREAK") else []))
"""What ends an answer: Ctrl-C at a terminal, SIGTERM from a supervisor, or CTRL_BREAK, which it sends on Windows."""


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[list[int]]:
    """While inside, the first signal calls `cancel` at once; a second within 2 s raises KeyboardInterrupt, or SystemExit.

    Where the main thread is in a call that does not end, a second one ends the program.
    The list that comes with `with` has those that arrived.
    Python runs its own handlers only between bytecodes, and a decode may take seconds. So the signal's number travels through the
    wakeup descriptor to a thread that is free to act: decodes release the GIL. For the main thread only.
    """
    reader, writer = socket.socketpair()  # Windows has no pipes that do not block
    writer.setblocking(False)
    last, heard = [float("-inf")], [float("-inf")]
    seen: list[int] = []
    watcher = threading.Thread(
        target=_watch, args=(reader, cancel, heard), name="pyspec-interrupt", daemon=True
    )

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        heard[0] = monotonic()
        if monotonic() - last[0] < TWICE_S:
            if number != signal.SIGINT:
                raise SystemExit(exit_code(seen))
            raise KeyboardInterrupt
        last[0] = monotonic()

    # in this order, and back: a signal that is handled while nobody watches would cancel nothing
    old_writer = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher.start()
    old_handlers = {number: signal.signal(number, handle) for number in BOTH}
    try:
        yield seen
    finally:
        for number, old in old_handlers.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(old_writer)
        writer.close()
        watcher.join()
        reader.close()


def exit_code(seen: Sequence[int]) -> int:
    """What a program ends with that these signals ended: 130 after Ctrl-C alone, else 143."""
    return 130 if set(seen) <= {signal.SIGINT} else 143


_IN_C_S, _JUST_S = 1.0, 0.25
"""How long the main thread has to hear of a second signal; in a call that does not end it never does."""


def _watch(reader: socket.socket, cancel: Callable[[], None], heard: Sequence[float]) -> None:
    """Cancel at the first signal; end the program where the main thread does not hear of another one within 2 s."""
    last = float("-inf")
    while numbers := reader.recv(16):
        for number in (number for number in numbers if number in BOTH):
            cancel()
            came, before = monotonic(), last
            last = came
            while came - before < TWICE_S and heard[0] < came - _JUST_S:
                if monotonic() > came + _IN_C_S:
                    os._exit(exit_code([number]))
                sleep(0.01)
