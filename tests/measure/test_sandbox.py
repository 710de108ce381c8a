"""The sandbox for code that a model wrote."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pyspec.errors import MeasureError
from pyspec.measure import questions
from pyspec.measure.questions import has_wall, passes


def test_a_program_that_ends_well_passes() -> None:
    """Imports and arithmetic work."""
    assert passes("import math, re, collections\nassert math.gcd(6, 4) == 2")


@pytest.mark.parametrize(
    "program",
    [
        "assert False",
        "syntax error here",
        "raise SystemExit(3)",
        "import socket; socket.socket()",
        "import subprocess; subprocess.run(['true'])",
        "import os; assert os.system('true') == 0",
        "import os; os.fork()",
        "import os; os.kill(os.getppid(), 0)",
        "open('x', 'w')",
        "import os; os.open('x', os.O_WRONLY | os.O_CREAT)",
        "import os; os.mkdir('x')",
        "x = bytearray(3 << 30)",
        "open('/etc/passwd').read()",
        "import os; os.truncate(KEPT, 0)",
        "import os; os.listdir('/')",
        "import _posixsubprocess",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise KeyboardInterrupt",
    ],
)
def test_failures_and_what_is_forbidden_do_not_pass(program: str, tmp_path: Path) -> None:
    """Errors, network, processes, files, too much memory, and leaving before the last check."""
    kept = tmp_path / "kept"
    kept.write_text("kept")
    assert passes(f"KEPT = {str(kept)!r}\n{program}") is False
    assert kept.read_text() == "kept"


@pytest.mark.skipif(not has_wall(), reason="needs seccomp")
def test_the_wall_is_the_kernels(tmp_path: Path) -> None:
    """Calls made past Python's own functions are refused too: a raw openat, execve or socket by number."""
    child = (
        "import runpy, os, sys, ctypes\n"
        f"wall = runpy.run_path({str(questions._CHILD)!r})['wall']\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "wall()\n"
        "refused = lambda *call: libc.syscall(*call) == -1 and ctypes.get_errno() == 1\n"
        "numbers = {'x86_64': (257, 59, 41, 56, 62), 'aarch64': (56, 221, 198, 220, 129)}[os.uname_machine]\n"
        "assert all(refused(number, 0, 0, 0, 0, 0) for number in numbers)\n"
    )
    machine = platform.machine()
    done = subprocess.run(
        [sys.executable, "-c", child.replace("os.uname_machine", repr(machine))],
        check=False, capture_output=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_without_a_wall_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is allowed by name, and then limits hold."""
    monkeypatch.setattr(questions, "has_wall", lambda: False)
    with pytest.raises(MeasureError, match="Linux"):
        passes("pass")
    monkeypatch.setenv("PYSPEC_UNGUARDED_CODE", "1")
    assert passes("assert True")
    assert not passes("import sys; sys.exit(0)")


def test_endless_output_is_ended() -> None:
    """What the code prints is thrown away."""
    assert passes("for _ in range(10 ** 9): print('x' * 1000)", timeout_s=1.0) is False


def test_an_endless_program_is_ended() -> None:
    """The time limit holds."""
    assert passes("while True: pass", timeout_s=1.0) is False


def test_the_environment_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's variables arrives."""
    monkeypatch.setenv("PYSPEC_SECRET", "1")
    assert passes("import os; assert 'PYSPEC_SECRET' not in os.environ")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder of the child is removed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert passes("assert True")
    assert list(tmp_path.iterdir()) == []
