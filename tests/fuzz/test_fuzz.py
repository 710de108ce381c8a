"""Damaged files of every kind kill nothing: no way into the package dies, hangs or ends in a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.entries import FIRST, THEN
from fuzz.mutate import CHANGES, KINDS
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
@pytest.mark.parametrize("kind", KINDS)
def test_mutants(kind: str) -> None:
    """300 that nobody chose; a long run is `python tests/fuzz/drive.py --kind all --count 10000 --log FILE`."""
    said = drive("--kind", kind, "--count", "300", "--jobs", "2")
    first = next(iter(FIRST[kind]))
    assert said.startswith(f"{kind}: 300 files: 0 deaths, 0 tracebacks, 0 hangs; ")
    assert f"{first} answered " in said  # else nothing was tried behind the header


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("kind", CHANGES)
def test_sound_files_are_answered(kind: str) -> None:
    """By all the ways that damaged ones of their kind take."""
    said = drive(f"{kind}:sound")
    assert all(f"{entry} answered 1" in said for entry in (*FIRST[kind], *THEN.get(kind, ())))
