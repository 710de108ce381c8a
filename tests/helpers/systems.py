"""What not every system has. Tests of it are collected everywhere, and skipped, never passed, where it is missing."""

import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks where Linux alone has it")

full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="Linux alone has a disk that is always full"
)


def alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
