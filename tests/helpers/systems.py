"""What not every system has. Tests of it are collected everywhere, and skipped, never passed, where it is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks where Linux alone has it")

full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="Linux alone has a disk that is always full"
)


def alive(pid: int) -> bool:
    state = _state(pid)
    return bool(state) and not state.startswith("Z")


def _state(pid: int) -> str:
    """One letter first, Z for a process that has ended; "" for none."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].strip()
        except FileNotFoundError:
            return ""
    words = ["ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
