"""Other programs' work is noticed, one's own is not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from helpers.sources import ROOT
from helpers.waiting import wait
from measure import bench

from pyspec.machine import machine as module
from pyspec.machine.machine import Watch

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
        (2, 2, 0.1, False),
        (2, 2, 1.0, True),
        (16, 4, 3.0, False),
        (16, 4, 13.0, True),
        (1, 2, 0.5, True),
    ],
)
def test_a_machine_is_busy_where_others_need_our_processors(
    monkeypatch, processors, threads, others, busy
):
    """Work on processors that nobody here uses disturbs nothing."""
    monkeypatch.setattr(module.os, "cpu_count", lambda: processors)
    monkeypatch.setattr(Watch, "others", lambda _self: others)
    assert Watch().busy(threads) is busy


def test_a_look_is_at_what_happened_since_the_last(monkeypatch):
    """Of three processors that worked for half a second each, this process was on one."""
    clocks = iter([(0.0, 10.0, 1.0), (0.5, 11.5, 1.5), (1.0, 11.5, 1.5)])
    monkeypatch.setattr(Watch, "_read", lambda _self: next(clocks))
    load = Watch(near=True)
    assert (load.others(), load.others()) == (2.0, 0.0)


def test_a_look_too_soon_says_nothing(monkeypatch):
    """Clocks that tick every 10 ms are too coarse; what was seen counts at the next look."""
    clocks = iter([(0.0, 0.0, 0.0), (0.01, 0.02, 0.0), (0.2, 0.2, 0.0)])
    monkeypatch.setattr(Watch, "_read", lambda _self: next(clocks))
    load = Watch(near=True)
    assert (load.others(), load.others()) == (0.0, 1.0)


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
    """Until it is quiet, four times at most; the quietest one stays."""
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
