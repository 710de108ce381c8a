"""Chat templates of model files: programs of strangers, rendered in a child process with limits or not at all."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspec.errors import TemplateError
from pyspec.store.child import command_of, environment_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TemplateProcess"]

START_S, RENDER_S = 20.0, 2.0
ROOM = 256 << 20
"""Bytes that a rendering may take."""


class TemplateProcess:
    """One template in a child that is started by the first rendering and ended by `close`.

    A rendering has 2 seconds, 256 MiB and 1 MiB of text; the child has no files to write and dies with its parent's pipe.
    """

    def __init__(self, template: str, eos_token: str, bos_token: str) -> None:
        self._first = {
            "template": template, "eos_token": eos_token, "bos_token": bos_token, "room": ROOM,
        }  # fmt: skip
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(self, arguments: Mapping[str, Any]) -> str:
        """The prompt of a conversation. Raises TemplateError."""
        try:
            line = json.dumps(arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"the conversation is no JSON: {error}") from None
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._start()
            if self._child is None:
                raise TemplateError("the template's process could not be started")
            return self._ask(self._child, line, RENDER_S)

    def _start(self) -> None:
        self._child = subprocess.Popen(
            command_of("_render.py"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment_of(gpu=False), cwd=Path(sys.executable).anchor,
        )  # fmt: skip
        self._ask(self._child, json.dumps(self._first), START_S)

    def _ask(self, child: subprocess.Popen[bytes], line: str, seconds: float) -> str:
        """One line to the child and its answer; a child that does not answer in time is ended."""
        timer = threading.Timer(seconds, child.kill)
        timer.start()
        try:
            reply = _exchange(child, line)
        finally:
            timer.cancel()
        if isinstance(reply, dict) and isinstance(reply.get("text"), str):
            return str(reply["text"])
        self.close()
        reason = reply.get("error") if isinstance(reply, dict) else None
        raise TemplateError(
            f"the model's own chat template cannot be used: {reason or 'it takes too long or too much memory'}",
            "give chat_format= (chatml, llama-3, gemma ...) instead",
        )

    def close(self) -> None:
        """End the child; a later rendering starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()


def _exchange(child: subprocess.Popen[bytes], line: str) -> Any:
    """The child's answer, or None where there is none."""
    try:
        if child.stdin is None or child.stdout is None:
            return None
        child.stdin.write(line.encode() + b"\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline() or b"null")
    except (OSError, ValueError, RecursionError):
        return None
