"""The C tests: kernels, engine and drafts that read states on a toy llama.cpp, under the sanitizers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="wraps malloc with the GNU linker")
def test_c_tests_pass(native: Path) -> None:
    """Each C test program builds without a warning, checks what it should and finds nothing."""
    run = subprocess.run(
        ["sh", native / "tests" / "run.sh"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    results = re.findall(r"(\w+)\.c: (\d+) checks, 0 failed", run.stdout)
    assert [name for name, checks in results if int(checks) > 0] == [
        "test_kernels",
        "test_engine",
        "test_faults",
        "test_index",
        "test_inputs",
        "test_lock",
    ]
