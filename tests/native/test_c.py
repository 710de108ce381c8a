"""The C tests on a toy llama.cpp, without sanitizers: `native/tests/run.sh` has those, and .ci/run runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
NAMES = sorted(path.stem.removeprefix("test_") for path in (NATIVE / "tests").glob("test_*.c"))


@pytest.mark.skipif(sys.platform != "linux", reason="is built as GCC and the GNU linker do it")
@pytest.mark.parametrize("name", NAMES)
def test_c_tests_pass(name):
    run = subprocess.run(
        ["sh", NATIVE / "tests" / "run.sh", name],
        capture_output=True, text=True, check=False, env={**os.environ, "PLAIN": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    checked = re.search(rf"test_{name}\.c: (\d+) checks, 0 failed", run.stdout)
    assert checked
    assert int(checked[1]) > 0
