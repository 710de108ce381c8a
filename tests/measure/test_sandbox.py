"""The sandbox for code that a model wrote."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pyspec.measure.sandbox import passes


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
        "import os; os.system('true')",
        "import os; os.fork()",
        "import os; os.kill(os.getppid(), 0)",
        "open('x', 'w')",
        "import os; os.open('x', os.O_WRONLY | os.O_CREAT)",
        "import os; os.mkdir('x')",
        "import ctypes",
        "x = bytearray(3 << 30)",
    ],
)
def test_failures_and_what_is_forbidden_do_not_pass(program: str) -> None:
    """Errors, network, processes, writing, too much memory."""
    assert passes(program) is False


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
    assert passes("import os; assert os.listdir() == []")
    assert list(tmp_path.iterdir()) == []
