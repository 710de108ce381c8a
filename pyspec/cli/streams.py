"""stdin, stdout and stderr, and the signals that end an answer: joined prompts, closed descriptors, full disks, lost readers."""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import BinaryIO

import click

from pyspec.chat import TWICE_S
from pyspec.errors import InputTooLong, OptionError
from pyspec.files import utf8

_PATIENCE_S = 2.0
"""How long stdin may give nothing beside a prompt before that is said."""


def open_closed() -> None:
    """Put something on the descriptors 0 to 2 where the caller closed them.

    Otherwise the next file that is opened would become stdout, and llama.cpp would write into it. Reading gives nothing;
    writing to stdout fails as on a full disk, so that no answer is lost in silence; stderr goes nowhere.
    """
    for fd, name, how in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        try:
            os.fstat(fd)
        except OSError:
            new = os.open(os.devnull, how)
            if new != fd:
                os.dup2(new, fd)
                os.close(new)
        if getattr(sys, name) is None:
            mode = "r" if fd == 0 else "w"
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - lives as long as the process


def silence(*fds: int) -> None:
    """Send descriptors nowhere, so that Python does not try once more to write at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in fds:
        os.dup2(nowhere, fd)
    os.close(nowhere)


def write_failed(error: OSError) -> str:
    """The sentence for an OSError that nobody below has put into words."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
    return f"cannot write to stdout: {reason}"


def prompt_text(prompt: str | None, file: Path | None, limit: int) -> str:
    """The prompt, the file and what is piped to stdin, those that there are, with a blank line between.

    `-` as prompt or file is stdin. Raises OptionError where there is nothing, InputEncoding, or InputTooLong above
    `limit` bytes each.
    """
    dashes = (prompt == "-") + (str(file) == "-")
    parts = [prompt if prompt != "-" else None, _file_text(file, limit)]
    if dashes or not _on_terminal():
        if parts[0] or parts[1]:
            _say_waiting()
        parts.append(read_text(sys.stdin.buffer, limit, "stdin"))
    given = [part for part in parts if part is not None and part.strip()]
    if not given:
        raise OptionError(
            "there is no prompt", 'give one: pyspec generate "...", -f FILE, or a pipe to stdin'
        )
    return "\n\n".join([part.rstrip("\n") for part in given[:-1]] + given[-1:])


def _on_terminal() -> bool:
    """Whether nothing is piped: a terminal, or a device such as /dev/null, which has nothing to say."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return True
    return stat.S_ISCHR(mode)


def _say_waiting() -> None:
    try:
        ready, _, _ = select.select([sys.stdin], [], [], _PATIENCE_S)
    except (OSError, ValueError):  # no descriptor to wait for
        return
    if not ready:
        click.echo("waiting for the rest of the prompt on stdin (</dev/null for none)", err=True)


def _file_text(file: Path | None, limit: int) -> str | None:
    if file is None or str(file) == "-":
        return None
    try:
        with file.open("rb") as stream:
            return read_text(stream, limit, str(file))
    except OSError as error:
        raise OptionError(
            f"{file} cannot be read: {error.strerror}", "name a readable text file"
        ) from error


def read_text(stream: BinaryIO, limit: int, name: str) -> str:
    """All of a stream as text, at most `limit` bytes, without BOM and CR at line ends."""
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise InputTooLong(f"{name} holds more than {limit} bytes", "raise --max-input")
    return utf8(data, name)


BOTH = (signal.SIGINT, signal.SIGTERM)
"""What ends an answer: Ctrl-C at a terminal, SIGTERM from a supervisor."""


@contextmanager
def interruptible(cancel: Callable[[], None], signals: Sequence[int] = BOTH) -> Iterator[list[int]]:
    """While inside, the first signal calls `cancel` at once; a second within 2 s raises KeyboardInterrupt, or SystemExit.

    signals: which ones are meant; the list that comes with `with` has those that arrived.
    Python runs its own handlers only between bytecodes, and a decode may take seconds. So the signal's number travels through the
    wakeup descriptor to a thread that is free to act: decodes release the GIL. For the main thread only.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(
        target=_watch, args=(reader, cancel, signals), name="pyspec-interrupt", daemon=True
    )
    last = [float("-inf")]
    seen: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if monotonic() - last[0] < TWICE_S:
            if number == signal.SIGTERM:
                raise SystemExit(exit_code(seen))
            raise KeyboardInterrupt
        last[0] = monotonic()

    old_handlers = {number: signal.signal(number, handle) for number in signals}
    old_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield seen
    finally:
        signal.set_wakeup_fd(old_writer)
        for number, old in old_handlers.items():
            signal.signal(number, old)
        os.close(writer)
        watcher.join()
        os.close(reader)


def exit_code(seen: Sequence[int]) -> int:
    """What a program ends with that these signals ended: 143 after SIGTERM, else 130."""
    return 143 if signal.SIGTERM in seen else 130


def _watch(reader: int, cancel: Callable[[], None], signals: Sequence[int]) -> None:
    while numbers := os.read(reader, 16):
        if any(number in numbers for number in signals):
            cancel()
