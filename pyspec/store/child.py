"""Runs a script of this folder in a process of its own, so that llama.cpp's aborts stay there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ChildExit", "command_of", "environment_of", "run_child"]

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
        if self.signal is not None:
            return f"llama.cpp ended the process with {_signal_name(self.signal)}"
        return self.error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def command_of(script: str) -> list[str]:
    """The command that runs `script` of this folder with this process's import path."""
    path = json.dumps([p or str(Path.cwd()) for p in sys.path])
    return [sys.executable, "-c", _START, path, str(Path(__file__).parent / script)]


def environment_of(*, gpu: bool) -> dict[str, str]:
    """The environment of a child."""
    return {**os.environ, **_ENV, **({} if gpu else _NO_GPU)}


def run_child(
    script: str,
    arguments: Sequence[str],
    *,
    timeout: float | None = None,
    on_line: Callable[[str], None] | None = None,
    gpu: bool = False,
) -> ChildExit:
    """Runs `script` of this folder; its last line of output is `{"ok": bool, "error": str}`.

    Earlier lines go to `on_line`. The child is killed after `timeout` seconds and when the caller
    is interrupted; it sees no GPU unless `gpu`.
    """
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [*command_of(script), *arguments],
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
