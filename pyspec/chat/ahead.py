"""Collects what is typed or pasted during an answer, without showing it, for the next prompt."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

try:
    import termios
except ImportError:  # without POSIX, what is typed waits in the console
    termios = None  # type: ignore[assignment]

PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
"""Escape sequences that turn bracketed paste on and off."""

_BEGUN, _ENDED = b"\x1b[200~", b"\x1b[201~"
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?")
_TIMEOUT_S = 2.0  # for the end of a paste that has begun

MAX_AHEAD = 1 << 20
"""Most bytes to keep; input beyond them is lost."""


class TypeAhead:
    """Collects what is typed into a terminal while something else runs, without an echo. Ctrl-C stays a signal."""

    def __init__(self, terminal: int | None = None) -> None:
        self._terminal, self._fd = terminal, -1
        self._data = bytearray()

    def taken(self) -> str:
        """Return the text typed since the last call, with editing keys applied."""
        data, self._data = bytes(self._data), bytearray()
        return typed_text(data)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect input during the block; do nothing without a terminal."""
        self._fd = _stdin() if self._terminal is None else self._terminal
        if termios is None or self._fd < 0 or not os.isatty(self._fd):
            yield
            return
        state = termios.tcgetattr(self._fd)
        quiet = [*state]
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(self._fd, termios.TCSANOW, quiet)
        _write(PASTE_ON)
        reader, writer = os.pipe()
        thread = threading.Thread(
            target=self._read, args=(reader,), name="pyspec-keys", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            os.write(writer, b"x")
            thread.join()
            os.close(reader)
            os.close(writer)
            with suppress(termios.error):  # the terminal may be gone
                termios.tcsetattr(self._fd, termios.TCSANOW, state)
            _write(PASTE_OFF)

    def _read(self, wake: int) -> None:
        """Read until `wake` is readable, and after that to the end of a paste that has begun."""
        end: float | None = None
        while True:
            left = None if end is None else max(0.0, end - monotonic())
            ready, _, _ = select.select([self._fd] if end else [self._fd, wake], [], [], left)
            if self._fd in ready:
                with suppress(OSError):  # the terminal is gone
                    data = os.read(self._fd, 4096)
                    self._data += data[: MAX_AHEAD - len(self._data)]
                    if data and end is None:
                        continue
            if end is None:
                end = monotonic() + _TIMEOUT_S
            if not self._pasting or (end is not None and monotonic() >= end):
                return

    @property
    def _pasting(self) -> bool:
        return self._data.rfind(_BEGUN) > self._data.rfind(_ENDED)


def _stdin() -> int:
    """The descriptor of standard input, -1 if it has none."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return -1


def _write(text: str) -> None:
    with suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()


def typed_text(data: bytes) -> str:
    """Apply backspace and Ctrl-U to typed bytes, and drop other control characters.

    Newlines at the end are dropped too, so that nothing is sent before the user has seen it.
    """
    text = _ESCAPES.sub("", data.decode("utf-8", "ignore"))
    made: list[str] = []
    for char in text.replace("\r\n", "\n").replace("\r", "\n"):
        if char in "\x7f\b":
            del made[-1:]
        elif char == "\x15":
            while made and made[-1] != "\n":
                del made[-1:]
        elif char in "\n\t" or char >= " ":
            made.append(char)
    return "".join(made).rstrip("\n")
