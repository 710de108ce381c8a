"""What control groups grant, and cores, are found; other programs' work is noticed, and one's own is not."""

import contextlib
import math
import os
import signal
import subprocess
import sys

import pytest
from helpers.sources import ROOT
from helpers.waiting import wait
from measure import bench

from pyspec.machine import machine as module
from pyspec.machine.machine import Watch, _cpu_share


@pytest.mark.parametrize(("group", "files", "cpus"), [
    ("0::/", {"cpu.max": "150000 100000"}, 1.5),
    ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2.0),
    ("0::/", {"cpu.max": "10000 100000"}, 1.0),
    ("0::/", {"cpu.max": "max 100000"}, math.inf),
    ("0::/", {"cpu.max": "nonsense"}, math.inf),
    ("4:cpu:/a", {}, math.inf),
])  # fmt: skip
def test_share_of_the_processors(group, files, cpus, tmp_path):
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


SPIN = "import time\nwhile time.process_time() < 10: pass"
"""Ends by itself where a test is killed before it can end it."""

ORPHAN = f"""
import subprocess, sys
nowhere = subprocess.DEVNULL
print(subprocess.Popen([sys.executable, "-c", {SPIN!r}], stdout=nowhere, stderr=nowhere).pid)
"""
"""Keeps no pipe open: whoever reads its parent's output would wait for its end."""


def test_ones_own_work_and_ones_childrens_is_not_others(monkeypatch):
    """With the clock of all processors fed by this process alone, nothing is left for others."""
    monkeypatch.setattr(module, "_all_s", lambda _only: module._own_s())
    watch = Watch()
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        wait(lambda: module._own_s() - watch._before[2] > 0.5)
        assert watch.others() < 0.2
        child.kill()


def test_a_strangers_work_is_seen():
    started = subprocess.run([sys.executable, "-c", ORPHAN], check=True, capture_output=True)
    try:
        watch = Watch()
        wait(lambda: watch.others() > 0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(started.stdout), signal.SIGKILL)


@pytest.mark.parametrize(
    ("processors", "threads", "others", "busy"),
    [
        (2, 2, 0.1, False), (2, 2, 1.0, True), (16, 4, 3.0, False), (16, 4, 13.0, True), (1, 2, 0.5, True) ],
)  # fmt: skip
def test_a_machine_is_busy_where_others_need_our_processors(
    monkeypatch, processors, threads, others, busy
):
    """Work on processors that nobody here uses disturbs nothing."""
    monkeypatch.setattr(module.os, "cpu_count", lambda: processors)
    monkeypatch.setattr(Watch, "others", lambda _self: others)
    assert Watch().busy(threads) is busy


@pytest.mark.parametrize(("clocks", "others"), [
    ([(0.0, 10.0, 1.0), (0.5, 11.5, 1.5), (1.0, 11.5, 1.5)], (2.0, 0.0)),
    # clocks that tick every 10 ms are too coarse for a look so soon: what was seen counts at the next
    ([(0.0, 0.0, 0.0), (0.01, 0.02, 0.0), (0.2, 0.2, 0.0)], (0.0, 1.0)),
])  # fmt: skip
def test_a_look_is_at_what_happened_since_the_last(monkeypatch, clocks, others):
    reads = iter(clocks)
    monkeypatch.setattr(Watch, "_read", lambda _self: next(reads))
    load = Watch(near=True)
    assert (load.others(), load.others()) == others


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity to ask for")
def test_processors_of_others_alone_do_not_count():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from pyspec.machine.machine import Watch; print(Watch(near=True).processors)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    )
    assert done.stdout.strip() == "1"


def test_a_disturbed_answer_is_timed_again(monkeypatch):
    shares = iter([0.5, 0.2, 0.01])
    monkeypatch.setattr(bench.Watch, "others", lambda _self: next(shares))
    made = []

    class Runner(bench.Runner):
        def __post_init__(self):
            pass

        def _record(self, *_arguments):
            made.append(bench.RunRecord("x", 1, "a", 0, [], None))
            return made[-1]

    kept = Runner(None, [], bench.Options(), None)._undisturbed(None, None, 0)
    assert (len(made), kept is made[2], kept.others) == (3, True, 0.01)
