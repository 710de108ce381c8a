"""Child processes for what may die: trial loads, conversions, and chat templates."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspec.errors import TemplateError

__all__ = ["ChildExit", "TemplateProcess", "command_of", "environment_of", "run_child"]

_SCRIPT = Path(__file__).with_name("_child.py")

# The child sees the parent's import path as it is now and never the working directory's files.
_START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "sys.argv[:] = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
_ENV = {
    "GGML_NO_BACKTRACE": "1",  # else an abort starts a debugger
    "PYTHONFAULTHANDLER": "0",
}
_NO_GPU = {  # where the work is done on the CPU, starting a GPU only costs time
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "GGML_VK_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True)
class ChildExit:
    """How a child ended: its report's error ("" when fine), the signal it died of, if any."""

    error: str
    signal: int | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether the child ran to its end and reported success."""
        return not self.error and self.signal is None and not self.timed_out

    @property
    def reason(self) -> str:
        """The failure in a few words."""
        if self.timed_out:
            return "it did not end in time"
        if self.signal == getattr(signal, "SIGPROF", None) is not None:
            return "llama.cpp did not end turning a line into tokens"
        if self.signal is not None:
            return f"llama.cpp ended the process with {_signal_name(self.signal)}"
        return self.error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def command_of(task: str) -> list[str]:
    """The command that does a task of `_child.py` with this process's import path."""
    path = json.dumps([p or str(Path.cwd()) for p in sys.path])
    return [sys.executable, "-c", _START, path, str(_SCRIPT), task]


def environment_of(*, gpu: bool) -> dict[str, str]:
    """The environment of a child."""
    return {**os.environ, **_ENV, **({} if gpu else _NO_GPU)}


def run_child(
    task: str,
    arguments: Sequence[str],
    *,
    timeout: float | None = None,
    on_line: Callable[[str], None] | None = None,
    gpu: bool = False,
) -> ChildExit:
    """Does a task of `_child.py`; its last line of output is `{"ok": bool, "error": str}`.

    Earlier lines go to `on_line`. The child is killed after `timeout` seconds and when the caller
    is interrupted; it sees no GPU unless `gpu`.
    """
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [*command_of(task), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment_of(gpu=gpu),
        )
        fired = threading.Event()

        def expire() -> None:
            fired.set()
            child.kill()

        timer = threading.Timer(timeout or 0, expire)
        if timeout is not None:
            timer.start()
        try:
            last = _read_lines(child, on_line)
            status = child.wait()
        finally:
            timer.cancel()
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        errors.seek(0)
        return _outcome(status, last, errors.read()[-2000:], fired.is_set())


def _read_lines(child: subprocess.Popen[bytes], on_line: Callable[[str], None] | None) -> str:
    last = ""
    for raw in child.stdout or ():
        if last and on_line is not None:
            on_line(last)
        last = raw.decode("utf-8", "replace").rstrip()
    return last


def _outcome(status: int, last: str, errors: bytes, timed_out: bool) -> ChildExit:
    if timed_out:
        return ChildExit("", timed_out=True)
    if status < 0:
        return ChildExit("", signal=-status)
    with contextlib.suppress(ValueError, RecursionError):
        report = json.loads(last)
        if isinstance(report, dict) and status == 0:
            return ChildExit("" if report.get("ok") is True else str(report.get("error", "failed")))
    tail = errors.decode("utf-8", "replace").strip().splitlines()
    return ChildExit(tail[-1] if tail else f"the child ended with status {status} and no report")


# -- chat templates ----------------------------------------------------------------------------------------------------


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
            command_of("render"),
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
