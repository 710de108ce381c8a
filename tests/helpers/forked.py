"""Runs calls in forks of this process, with what became of them: a fraction of a new interpreter's time each.

The process that forks must not have threads of its own making.
"""

import faulthandler
import io
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from pyspec.machine.child import _ENV, _SCRIPT, ChildExit, _outcome, limit

_TICK_S = 0.005

_MAX_BYTES = 12 << 30
"""Of address space: a file that asks for more fails alone instead of ending other processes of the machine."""


may_fork = True
"""Whether a fork of this process works: of one that uses a graphics card it does not."""


class End(NamedTuple):
    """What a fork wrote into its pipe; its status, None after it was ended for taking too long, and where it was then."""

    said: str
    status: int | None
    where: str = ""


def fork(work: Callable[[int], None], timeout: float) -> End:
    """`work(fd)` in a fork, without standard streams; what it writes to `fd` is what it says. It must not return."""
    if not may_fork:
        pytest.skip("a fork cannot use the graphics card of the process that it is made from")
    with tempfile.TemporaryFile() as report, tempfile.TemporaryFile() as stacks:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            _become(work, report.fileno(), stacks)
        status = _wait(pid, timeout)
        report.seek(0)
        stacks.seek(0)
        return End(report.read().decode("utf-8", "replace"), status, stacks.read().decode()[:2000])


def told(work: Callable[..., Any], *arguments: Any, timeout: float = 100) -> Any:
    """What a call returns, by way of JSON, in a fork: one that ended the process would be known by where it was."""

    def report(fd: int) -> None:
        os.write(fd, json.dumps(work(*arguments)).encode())
        os._exit(0)

    said, status, where = fork(report, timeout)
    assert status == 0, (status, where)
    return json.loads(said)


def _become(work: Callable[[int], None], report: int, stacks: IO[bytes]) -> None:
    try:
        limit(AS=_MAX_BYTES)
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks)
        silence = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(silence, fd)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
        work(report)
    finally:
        os._exit(99)


def _wait(pid: int, timeout: float) -> int | None:
    """Counts the time in which this process ran too: whoever stops both for a while makes no hang."""
    left, last = timeout, time.monotonic()
    while left > 0:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(_TICK_S)
        now = time.monotonic()
        left, last = left - min(now - last, 0.1), now
    os.killpg(pid, signal.SIGUSR1)
    time.sleep(0.5)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def run_child(
    task: str, arguments: Sequence[str], *, timeout: float, script: Path = _SCRIPT, **_: Any
) -> ChildExit:
    """As `pyspec.machine.child.run_child`, in a fork: the script is the same, its interpreter is warm."""

    def work(report: int) -> None:
        os.environ.update(_ENV)
        sys.argv = [str(script), task, *arguments]
        sys.stdout = os.fdopen(report, "w", closefd=False)
        try:
            runpy.run_path(str(script), run_name="__main__")
        except BaseException:  # noqa: BLE001 - an interpreter of its own would say it and end with 1
            sys.stdout.write(traceback.format_exc())
            sys.stdout.flush()
            os._exit(1)

    said, status, _ = fork(work, timeout)
    if status is None:
        return ChildExit("", timed_out=True)
    return _outcome(os.waitstatus_to_exitcode(status), said.encode(), said.encode())
