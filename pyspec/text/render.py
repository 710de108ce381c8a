"""The parent's side of the child process that renders chat templates (`_jinja.py`)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspec.errors import InputError, TemplateError

_SCRIPT = Path(__file__).with_name("_jinja.py")

MAX_SOURCE = 1 << 20
"""Longest template, characters."""

ROOM = 256 << 20
"""Memory limit of the child for rendering, bytes."""

TIMEOUT_S = 20.0
"""How long to wait for a reply. The child limits its own CPU time, so this matters only on an overloaded machine."""


class Renderer:
    """A child process that renders templates. `start` or the first rendering starts it; `close` or collection ends it.

    If it dies, the next rendering starts another; a template that killed it is not tried again. Safe from any thread.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._lines: dict[str, str] = {}
        self._unread: list[str] = []  # templates the child has not answered for yet
        self._broken: dict[str, str] = {}

    def start(self) -> None:
        """Start the child without waiting for it."""
        with self._lock:
            self._started()

    def add(self, name: str, source: str, variables: Mapping[str, str]) -> None:
        """Add a template under a name. Whether it works is known only when it is rendered."""
        with self._lock:
            self._broken.pop(name, None)
            if len(source) > MAX_SOURCE:
                self._broken[name] = f"it has more than {MAX_SOURCE} characters"
                return
            self._lines[name] = json.dumps(
                {"name": name, "source": source, "variables": dict(variables)}
            )
            if self._child is not None:
                self._send(self._child, self._lines[name])
                self._unread.append(name)

    def render(self, name: str, arguments: Mapping[str, Any], now: float | None = None) -> str:
        """Return a conversation's text. now: the time for `strftime_now`, in seconds since 1970; None for the current time.

        Raises InputError if the template refuses the conversation or fails at it, TemplateError if the template is unusable.
        """
        try:
            line = json.dumps({"name": name, "now": now, "arguments": arguments})
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the conversation cannot be written as JSON: {error}") from None
        with self._lock:
            child = self._ready()
            if name in self._broken:
                raise _failed(self._broken[name])
            self._send(child, line)
            reply = self._reply(child)
        if isinstance(reply.get("text"), str):
            return str(reply["text"])
        for key, does in (("raised", "refuses"), ("failed", "fails at")):
            if key in reply:
                raise InputError(
                    f"the model's chat template {does} this conversation: {reply[key]}",
                    "change the order of its turns, or name another --chat-template",
                )
        raise _failed(reply.get("error"))

    def close(self) -> None:
        with self._lock:
            self._end()

    # -- with the lock held ------------------------------------------------------------------------

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        path = json.dumps([p or str(Path.cwd()) for p in sys.path])
        self._child = child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), path, str(ROOM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=Path(sys.executable).anchor,
        )  # fmt: skip
        self._ended = weakref.finalize(self, _end, child)
        for name, line in self._lines.items():
            if name not in self._broken:
                self._send(child, line)
                self._unread.append(name)
        return child

    def _ready(self) -> subprocess.Popen[bytes]:
        """Return the child after reading its replies for the templates sent."""
        child = self._started()
        while self._unread:
            name = self._unread.pop(0)
            reply = self._reply(child)
            if "text" not in reply:
                self._broken[name] = str(reply.get("error") or reply.get("failed") or _SLOW)
            child = self._started()  # a new one if the template killed it
        return child

    @staticmethod
    def _send(child: subprocess.Popen[bytes], line: str) -> None:
        """Send the child a line. It reads unless it is at work, and it limits the time of that itself."""
        # if it has died, its reply will be missing
        with contextlib.suppress(OSError), _deadline(child):
            if child.stdin is not None:
                child.stdin.write(line.encode() + b"\n")
                child.stdin.flush()

    def _reply(self, child: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Read a line from the child; end the child if none comes."""
        try:
            with _deadline(child):
                reply = json.loads(child.stdout.readline() if child.stdout else b"")
        except (OSError, ValueError, RecursionError):
            reply = None
        if isinstance(reply, dict):
            return reply
        self._end()
        return {}

    def _end(self) -> None:
        child, self._child = self._child, None
        self._unread.clear()
        if child is not None:
            self._ended()


@contextlib.contextmanager
def _deadline(child: subprocess.Popen[bytes]) -> Iterator[None]:
    timer = threading.Timer(TIMEOUT_S, child.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_SLOW = "it takes too long or too much memory"


def _failed(reason: Any) -> TemplateError:
    return TemplateError(
        f"the model's own chat template cannot be used: {reason or _SLOW}",
        "name another with --chat-template FILE, or use --chat-template none for plain text",
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError), child:
        child.kill()
