"""Damaged model files kill nothing: neither the class nor the command dies, hangs or ends in a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.seeds import NUMBERS, SEEDS

DRIVE = Path(__file__).with_name("drive.py")


def drive(*arguments: str) -> str:
    """Run the driver; every mutant must be answered or refused. What it said."""
    done = subprocess.run(
        [sys.executable, str(DRIVE), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_earlier_faults() -> None:
    """What once killed the process."""
    drive(*SEEDS, *map(str, NUMBERS))


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_mutants() -> None:
    """300 that nobody chose; a long run is `python tests/fuzz/drive.py --count 10000 --log FILE`."""
    said = drive("--count", "300", "--jobs", "2")
    assert said.startswith("300 files: 0 deaths, 0 tracebacks, 0 hangs; class answered ")
