"""Running code that a model wrote: in a child process that can compute and nothing else.

Before the code runs, the child gives up every system call but those of memory, time, and reading and writing what is open
already (seccomp, with no_new_privs): the kernel then refuses files, processes, signals to others and the network, whatever
the code does. What it may import is imported before. Time and memory have limits. A program has passed when the line after
its last check was reached; one that leaves early has not. Code that sets out to cheat may still claim to have passed: the
wall is around the machine, not around the score.

Linux on x86-64 and arm64 has this. Elsewhere running such code is refused, unless PYSPEC_UNGUARDED_CODE=1 allows it to run
with limits alone.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspec.errors import MeasureError

TIMEOUT_S = 5.0
_MEMORY = 1 << 30
_CHILD = Path(__file__).with_name("_sandboxed.py")


def has_wall() -> bool:
    """Whether this machine can wall the code in."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


def passes(program: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether a Python program reaches its end without an error within the limits. Raises MeasureError without a wall."""
    if not has_wall() and os.environ.get("PYSPEC_UNGUARDED_CODE") != "1":
        raise MeasureError(
            "code that a model wrote is run on Linux only, where it can be walled in",
            "measure there, or set PYSPEC_UNGUARDED_CODE=1 to run it with limits alone",
        )
    word = secrets.token_hex(16)
    verdict, end = os.pipe()
    try:
        with tempfile.TemporaryDirectory(prefix="pyspec-") as folder:
            _run(program, word, end, folder, timeout_s)
        os.close(end)
        end = -1
        return os.read(verdict, 64) == word.encode()
    finally:
        os.close(verdict)
        if end >= 0:
            os.close(end)


def _run(program: str, word: str, end: int, folder: str, timeout_s: float) -> None:
    """Run the program; `end` is the pipe into which the child writes `word` when it has passed."""
    arguments = [str(end), str(max(1, round(timeout_s))), str(_MEMORY), str(int(has_wall()))]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_CHILD), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=folder, env=_environment(), start_new_session=True,
        pass_fds=() if sys.platform == "win32" else (end,),
    )  # fmt: skip
    try:
        # the word comes last, so that the code does not hold it while it runs
        data = program.encode("utf-8", "replace")
        process.communicate(b"%d\n%b%b" % (len(data), data, word.encode()), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    # Windows' Python does not start without it
    return {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
