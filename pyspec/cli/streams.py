"""Handling of stdin and signals for all commands: joined prompts, interrupts."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any, BinaryIO

from pyspec.chat import TWICE_S
from pyspec.cli.command import tell
from pyspec.errors import InputTooLong, OptionError
from pyspec.machine.files import open_named, utf8

_NOTICE_S = 2.0  # how long to wait silently for stdin if there is a prompt already
MAX_BYTES = 16 << 20  # largest file of a grammar, template or schema, bytes


def prompt_text(prompt: str | None, file: Path | None, limit: int) -> str:
    """Join the prompt, the file and piped stdin, as far as given, with blank lines between.

    `-` as prompt or file means stdin. Raises OptionError if there is no prompt, InputEncoding, or InputTooLong above `limit`
    bytes each.
    """
    dashes = (prompt == "-") + (str(file) == "-")
    from_file = file_text(file, limit) if file is not None and str(file) != "-" else None
    parts = [prompt if prompt != "-" else None, from_file]
    if dashes or _piped():
        if parts[0] or parts[1]:
            _say_waiting(sys.stdin.buffer)
        parts.append(_text(sys.stdin.buffer, limit, "stdin"))
    texts = [part for part in parts if part is not None and part.strip()]
    if not texts:
        hint = 'give one: pyspec generate "...", -f FILE, or a pipe to stdin'
        raise OptionError("there is no prompt", hint)
    return "\n\n".join([part.rstrip("\n") for part in texts[:-1]] + texts[-1:])


def _piped() -> bool:
    """Whether stdin may bring text: not if it is a terminal, or a device such as /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):  # no descriptor
        return False


def _say_waiting(stream: Any) -> None:
    """Wait for the first byte, and say so after a while."""
    sentence = "waiting for the rest of the prompt on stdin (use </dev/null if there is none)"
    timer = threading.Timer(_NOTICE_S, tell, (sentence,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        stream.peek(1)
    finally:
        timer.cancel()


def file_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Read a regular text file. Raises OptionError if that fails, InputEncoding, or InputTooLong above `limit` bytes."""
    try:
        with open_named(path) as stream:
            return _text(stream, limit, str(path))
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{path} cannot be read: {reason}", "name a readable text file") from None


def _text(stream: BinaryIO, limit: int, name: str) -> str:
    data = stream.read(limit + 1)
    if len(data) > limit:
        hint = "give less of it, or use `pyspec batch`"
        raise InputTooLong(f"{name} is larger than {limit} bytes", hint)
    return utf8(data, name)


# -- signals -----------------------------------------------------------------------------------------------------------

BOTH = (signal.SIGINT, signal.SIGTERM)  # end an answer: Ctrl-C, or a supervisor's SIGTERM


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[list[int]]:
    """In the body, the first signal calls `cancel` at once; a second within 2 s raises KeyboardInterrupt, or SystemExit.

    If the main thread is stuck in a C call, the second signal ends the program. Yields the list of received signals.
    Python runs signal handlers only between bytecodes, and a decode may take seconds. Therefore the wakeup descriptor passes the
    signal's number to a thread, which can run because decodes release the GIL. Use it in the main thread only.
    """
    reader, writer = socket.socketpair()
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


_IN_C_S, _JUST_S = 1.0, 0.25  # time to handle a second signal; tolerance for one just handled


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
