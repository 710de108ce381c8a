"""What control groups grant is found, of either version and wherever it is stated, and so are cores."""

from __future__ import annotations

import math

import pytest

from pyspec.machine import machine as module
from pyspec.machine.machine import _cpu_share


@pytest.mark.parametrize(
    ("group", "files", "cpus"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2.0),
        ("0::/", {"cpu.max": "10000 100000"}, 1.0),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {"cpu.max": "nonsense"}, math.inf),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3.0),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("4:memory:/", {"cpu.max": "100000 100000"}, math.inf),
    ],
)  # fmt: skip
def test_share_of_the_processors(group, files, cpus, tmp_path):
    """The least of the group and those above it, one at least; infinity without a limit."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert _cpu_share(tmp_path) == cpus


@pytest.mark.parametrize(
    ("smt", "physical", "cores"),
    [("1", 24, 4), ("0", 24, 8), (None, 4, 4), (None, 24, 8), (None, None, 8)],
)
def test_hyper_threads_are_no_cores(smt, physical, cores, tmp_path, monkeypatch):
    """By the system's word on them where there is one, else by psutil's count of the machine's cores, never more than allowed."""
    monkeypatch.setattr(module.psutil, "cpu_count", lambda **_: physical)
    if smt is not None:
        (tmp_path / "sys/devices/system/cpu/smt").mkdir(parents=True)
        (tmp_path / "sys/devices/system/cpu/smt/active").write_text(f"{smt}\n")
    assert module.physical_cores(8, tmp_path) == cores
