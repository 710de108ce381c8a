"""Handling of stdin, stdout, stderr and signals for all commands: joined prompts, tables, progress, interrupts.

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
from pyspec.errors import InputTooLong, OptionError
from pyspec.screen.display import Screen, safe
from pyspec.screen.tables import TextTable, print_table
from pyspec.store.files import open_named, utf8

_NOTICE_S = 2.0
"""How long to wait silently for stdin if there is a prompt already."""


def prompt_text(prompt: str | None, file: Path | None, limit: int, taken: str = "") -> str:
    """Join the prompt, the file and piped stdin, as far as given, with blank lines between.

    `-` as prompt or file means stdin. taken: what another option took that may have been meant as the prompt. Raises OptionError
    if there is no prompt, InputEncoding, or InputTooLong above `limit` bytes each.
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
            f"there is no prompt{taken}",
            'give one: pyspec generate "...", -f FILE, or a pipe to stdin',
        )
    return "\n\n".join([part.rstrip("\n") for part in given[:-1]] + given[-1:])


def _piped() -> bool:
    """Whether stdin may bring text: not if it is a terminal, or a device such as /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):  # no descriptor
        return False


def _say_waiting(stream: Any) -> None:
    """Wait for the first byte, and say so after a while. Not with `select`, which takes only sockets on Windows."""
    sentence = "waiting for the rest of the prompt on stdin (use </dev/null if there is none)"
    timer = threading.Timer(_NOTICE_S, tell, (sentence,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        stream.peek(1)
    finally:
        timer.cancel()


MAX_BYTES = 16 << 20
"""Largest file of a grammar, template or schema, bytes."""


def file_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Read a regular text file. Raises OptionError if that fails, InputEncoding, or InputTooLong above `limit` bytes."""
    try:
        with open_named(path) as stream:
            return _text(stream, limit, str(path))
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{path} cannot be read: {reason}", "name a readable text file") from None


def _text(stream: BinaryIO, limit: int | None, name: str) -> str:
    data = stream.read(-1 if limit is None else limit + 1)
    if limit is not None and len(data) > limit:
        raise InputTooLong(f"{name} is larger than {limit} bytes", "raise --max-input")
    return utf8(data, name)


# -- tables and progress -----------------------------------------------------------------------------------------------


def stdout_console() -> Console:
    """Return the console for tables and figures. Piped output is not wrapped, so that scripts can read it."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=240)


def print_listing(
    head: Sequence[str], rows: Iterable[Sequence[str]], first: Sequence[str], needed: int
) -> None:
    """Print one line per model. A narrow terminal gets the leading columns of `first` that fit, at least `needed`."""
    words = [name for name in head if name not in ("GB", "share")]
    cells = [[safe(cell) for cell in row] for row in rows]
    print_table(TextTable(head, cells, words, first, needed), stdout_console(), markdown=False)


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
            count = f"{done}/{total} " if total else ""
            console.print(f"{count}{what}{more}", markup=False, highlight=False)

    with bar if console.is_terminal else nullcontext():
        yield show


# -- signals -----------------------------------------------------------------------------------------------------------


BOTH = (signal.SIGINT, signal.SIGTERM, *([signal.SIGBREAK] if hasattr(signal, "SIGBREAK") else []))
"""Signals that end an answer: Ctrl-C, a supervisor's SIGTERM, or on Windows its CTRL_BREAK."""


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[list[int]]:
    """In the body, the first signal calls `cancel` at once; a second within 2 s raises KeyboardInterrupt, or SystemExit.

    If the main thread is stuck in a C call, the second signal ends the program. Yields the list of received signals.
    Python runs signal handlers only between bytecodes, and a decode may take seconds. Therefore the wakeup descriptor passes the
    signal's number to a thread, which can run because decodes release the GIL. Use it in the main thread only.
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

    # watcher first, and undone in reverse: a signal handled while nobody watches would cancel nothing
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
    """Return the exit code after these signals: 130 if all were Ctrl-C, else 143."""
    return 130 if set(seen) <= {signal.SIGINT} else 143


_IN_C_S, _JUST_S = 1.0, 0.25
"""How long the main thread may take to handle a second signal, and the tolerance for one it has just handled, seconds."""


def _watch(reader: socket.socket, cancel: Callable[[], None], heard: Sequence[float]) -> None:
    """Cancel at each signal. End the program if the main thread does not handle a second one that came within 2 s."""
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
