"""Runs tasks that could crash or hang a process in child processes: one task each, with a time limit, and a reason if it fails.

The child's code is `_child.py`, which limits its own memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO

_SCRIPT = Path(__file__).with_name("_child.py")

# The child ends when its stdin closes, even if the parent was killed: a thread watches it, which C code does not block.
# It gets the parent's current import path, so that it never imports files of the working directory.
_START = (
    "import os, stat, _thread; stat.S_ISFIFO(os.fstat(0).st_mode) and "
    "_thread.start_new_thread(lambda: (os.read(0, 1), os._exit(1)), ()); "
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "sys.argv[:] = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
_ENV = {
    "GGML_NO_BACKTRACE": "1",  # else an abort starts a debugger
    "PYTHONFAULTHANDLER": "0",
}
_NO_GPU = dict.fromkeys(
    ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"), ""
)  # for work on the CPU, starting a GPU only costs time


@dataclass(frozen=True)
class ChildExit:
    """How a child ended: its report's error (empty on success), the signal that killed it, if any, and its time limit."""

    error: str
    signal: int | None = None
    timed_out: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the child ran to its end and reported success."""
        return not self.error and self.signal is None and not self.timed_out

    @property
    def reason(self) -> str:
        """The reason of a failure in a few words."""
        if self.timed_out:
            return "it did not finish in time"
        if self.signal == signal.SIGPROF:
            return "llama.cpp did not finish"
        if self.signal is not None:
            names = {int(each): each.name for each in signal.Signals}
            name = names.get(self.signal, f"signal {self.signal}")
            return f"llama.cpp ended the process with {name}"
        return self.error


def run_child(
    task: str,
    arguments: Sequence[str],
    *,
    timeout: float | None = None,
    on_line: Callable[[str], None] | None = None,
    gpu: bool = False,
    script: Path | None = None,
) -> ChildExit:
    """Run a task of `_child.py`, or of another script, whose last line of output is `{"ok": bool, "error": str}`.

    Earlier lines go to `on_line`. The child is killed after `timeout` seconds and when the caller
    is interrupted; it sees no GPU unless `gpu`.
    """
    deadline = None if timeout is None else monotonic() + timeout
    path = json.dumps([p or str(Path.cwd()) for p in sys.path])
    command = [sys.executable, "-c", _START, path, str(script or _SCRIPT), task, *arguments]
    pipe, env = subprocess.PIPE, {**os.environ, **_ENV, **({} if gpu else _NO_GPU)}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=env) as child,
    ):
        try:
            last = _read_lines(child.stdout, deadline, on_line)
            status = child.wait(_left(deadline))
        except (TimeoutError, subprocess.TimeoutExpired):
            return ChildExit("", timed_out=True, seconds=timeout or 0)
        finally:
            child.kill()  # no effect if it has ended
            child.wait()
        errors.seek(0)
        return _outcome(status, last, errors.read()[-2000:])


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - monotonic())


def _read_lines(
    pipe: IO[bytes] | None, deadline: float | None, on_line: Callable[[str], None] | None
) -> str:
    """Return the last line, which is not shown to `on_line`. Raises TimeoutError.

    No thread keeps the time: Python waits forever for one that finds no memory to begin.
    """
    last, rest = "", b""
    while pipe is not None and select.select([pipe], [], [], _left(deadline))[0]:
        if not (part := os.read(pipe.fileno(), 65536)):
            return last
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if last and on_line is not None:
                on_line(last)
            last = line.decode("utf-8", "replace").rstrip()
    raise TimeoutError


def _outcome(status: int, last: str, errors: bytes) -> ChildExit:
    if status < 0:
        return ChildExit("", signal=-status)
    with contextlib.suppress(ValueError, RecursionError):
        report = json.loads(last)
        if isinstance(report, dict) and status == 0:
            return ChildExit("" if report.get("ok") is True else str(report.get("error", "failed")))
    tail = errors.decode("utf-8", "replace").strip().splitlines()
    return ChildExit(tail[-1] if tail else f"the child ended with status {status} and no report")
