"""Commands without a new interpreter each: in this process, or in a fork where signals and ends matter.

A new interpreter costs 0.7 s of imports. `new=True` starts one all the same: for what only a whole process shows, such as
what Python says at its exit. A fork must not be made while this process runs threads of its own.
"""

from __future__ import annotations

import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
import pytest

from helpers import forked
from helpers.halting import sitecustomize
from helpers.waiting import wait
from pyspec.cli.main import main

Main = Callable[[list[str]], Any]
QUIET = {"PYSPEC_CHATS": "", "PYSPEC_CHAT_HISTORY": ""}
"""No log of answers and chats unless a test names a folder."""


class Done(NamedTuple):
    """How a command ended, with what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run(
    *words: object, stdin: bytes | None = None, stdout: str | None = None, cwd: Path | None = None,
    begin: Main = main, **variables: str | None,
) -> Done:  # fmt: skip
    """Run `pyspec WORDS` in this process, with descriptors, streams and environment as a shell would give them.

    stdin: what a pipe brings; None for the null device. stdout: a file such as /dev/full in place of what is returned.
    variables: of the environment; None takes one away. An exception that would be a traceback is raised here.
    """
    with ExitStack() as ends:
        files = _files(ends, stdin, stdout)
        ends.enter_context(_environment(variables, cwd))
        with _standing(files):
            code = _ended(begin, list(map(str, words)))
        return Done(code, *map(_text, files[1:]))


def _files(ends: ExitStack, stdin: bytes | None, stdout: str | None = None) -> list[IO[bytes]]:
    """What a command reads, and the two that it writes to."""
    folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
    given = folder / "stdin"
    given.write_bytes(stdin or b"")
    source = os.devnull if stdin is None else given
    opened = (source, "rb"), (stdout or folder / "stdout", "wb"), (folder / "stderr", "wb")
    return [ends.enter_context(Path(path).open(how)) for path, how in opened]


def _text(file: IO[bytes]) -> str:
    """What was written into a file; "" into a device."""
    path = Path(file.name)
    return path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""


@contextmanager
def _environment(variables: Mapping[str, str | None], cwd: Path | None) -> Iterator[None]:
    old, home = dict(os.environ), Path.cwd()
    try:
        _change({**QUIET, **variables}, cwd)
        yield
    finally:
        os.chdir(home)
        os.environ.clear()
        os.environ.update(old)


def _change(variables: Mapping[str, str | None], cwd: Path | None) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    os.chdir(cwd or Path.cwd())


@contextmanager
def _standing(files: Sequence[IO[bytes]]) -> Iterator[None]:
    """Descriptors 0 to 2 and Python's streams are these files, and signals are handled as before afterwards."""
    streams, kept = (sys.stdin, sys.stdout, sys.stderr), [os.dup(fd) for fd in range(3)]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _stand(files)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        logging.root.removeHandler(logging.lastResort)  # type: ignore[arg-type]
        sys.stdin, sys.stdout, sys.stderr = streams
        for fd, old in enumerate(kept):
            os.dup2(old, fd)
            os.close(old)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _stand(files: Sequence[IO[bytes]]) -> None:
    for fd, file in enumerate(files):
        os.dup2(file.fileno(), fd)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    logging.root.addHandler(logging.lastResort)  # type: ignore[arg-type] # pytest's own handlers keep it out of use


def _ended(begin: Main, words: list[str]) -> int:
    try:
        begin(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


class Started:
    """A command in a process of its own, which writes to files. Used with `with`, which ends it."""

    def __init__(
        self, words: Sequence[str], stdin: bytes | None, cwd: Path | None, before: Callable[[], None] | None,
        begin: Main, variables: Mapping[str, str | None], new: Sequence[str] | None,
    ) -> None:  # fmt: skip
        self._ends, self.returncode = ExitStack(), None
        self._files = _files(self._ends, stdin, None)
        if new is None:
            self.pid = _fork(words, self._files, cwd, before, begin, variables)
        else:
            self.pid = _spawn([*new, *words], self._files, cwd, before, variables)

    def poll(self) -> int | None:
        """The exit code, minus the signal's number where one ended it; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def terminate(self) -> None:
        self.send(signal.SIGTERM)

    def wait(self) -> int:
        wait(lambda: self.poll() is not None)
        assert self.returncode is not None
        return self.returncode

    @property
    def stdout(self) -> str:
        return _text(self._files[1])

    @property
    def stderr(self) -> str:
        return _text(self._files[2])

    def ended(self) -> Done:
        return Done(self.wait(), self.stdout, self.stderr)

    def halted(self) -> None:
        """Returns once it has stopped itself, or ended."""
        state = psutil.Process(self.pid).status
        wait(lambda: self.poll() is not None or state() == psutil.STATUS_STOPPED)

    def said(self, pattern: str) -> re.Match[str]:
        """What of stderr matches, as soon as it does. Fails if the command ends without it."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            over = self.poll() is not None
            found.extend(re.finditer(pattern, self.stderr))
            assert found or not over, self.stderr
            return bool(found)

        wait(look)
        return found[0]

    def send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()
        self._ends.close()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fork(
    words: Sequence[str], files: Sequence[IO[bytes]], cwd: Path | None, before: Callable[[], None] | None,
    begin: Main, variables: Mapping[str, str | None],
) -> int:  # fmt: skip
    mine = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a shell's child has no handlers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads that only wait do no harm
        pid = os.fork()
    if pid:
        signal.signal(signal.SIGTERM, mine)
        return pid
    try:
        os.setsid()
        _change({**QUIET, **variables}, cwd)
        _stand(files)
        if before is not None:
            before()
        code = _ended(begin, list(words))
        sys.stdout.flush()
        os._exit(code)
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _spawn(
    command: Sequence[str], files: Sequence[IO[bytes]], cwd: Path | None, before: Callable[[], None] | None,
    variables: Mapping[str, str | None],
) -> int:  # fmt: skip
    with _environment(variables, cwd):
        stdin, stdout, stderr = files
        process = subprocess.Popen(
            [sys.executable, *command], stdin=stdin, stdout=stdout, stderr=stderr,
            start_new_session=True, preexec_fn=before,  # noqa: PLW1509 - before threads
        )  # fmt: skip
    process.returncode = 0  # `Started` waits for it
    return process.pid


def start(
    *words: object, stdin: bytes | None = None, cwd: Path | None = None, before: Callable[[], None] | None = None,
    begin: Main = main, new: bool = False, halts: tuple[Callable[..., Any], int] | None = None,
    **variables: str | None,
) -> Started:  # fmt: skip
    """Start `pyspec WORDS` in a fork; new: in an interpreter of its own.

    before: what the process does first, such as limiting itself. begin: what it does then, in place of `pyspec`.
    halts: a method and the call of it before which the process stops itself, until SIGCONT comes.
    """
    python = _python(begin) if new or not forked.may_fork else None
    if halts and python is None:
        before = partial(sitecustomize.halt, *halting(*halts)[sitecustomize.VARIABLE].split())
    elif halts:
        variables |= halting(*halts)
    return Started(list(map(str, words)), stdin, cwd, before, begin, variables, python)


def halting(method: Callable[..., Any], calls: int) -> dict[str, str]:
    """Variables for a Python that stops itself before this call of a method."""
    told = f"{method.__module__} {method.__qualname__.replace('.', ' ')} {calls}"
    return {sitecustomize.VARIABLE: told, "PYTHONPATH": str(Path(sitecustomize.__file__).parent)}


def _python(begin: Main) -> list[str]:
    if begin not in (main, interpret):
        pytest.skip("no fork can be made of this process")
    return ["-m", "pyspec"] if begin is main else []


def port_of(server: Started) -> int:
    """Where a server listens, from the line that says so, whatever is said before it."""
    return int(server.said(r"http://[^\s:]+:(\d+)").group(1))


def interpret(words: list[str]) -> None:
    """What Python does with these words: `-c CODE`, or a file."""
    how, *rest = words
    if how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(how).parent))
        runpy.run_path(how, run_name="__main__")


def run_python(*words: object, cwd: Path | None = None) -> Done:
    """Run `python WORDS` in a fork."""
    with start(*words, cwd=cwd, begin=interpret, before=one_processor) as child:
        return child.ended()


def one_processor() -> None:
    """More threads than one leave a pool in the process that forks, and wait for it in the fork."""
    if hasattr(os, "sched_setaffinity"):
        all_here = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {all_here[os.getpid() % len(all_here)]})  # not all of them on one
