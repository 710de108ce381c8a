"""Other programs' work is noticed, one's own is not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from waiting import wait

from pyspec.measure import bench
from pyspec.measure.bench import Watch

SPIN = "import time\nwhile time.process_time() < 10: pass"
"""Ends by itself where a test is killed before it can end it."""

ORPHAN = f"""
import subprocess, sys
nowhere = subprocess.DEVNULL
print(subprocess.Popen([sys.executable, "-c", {SPIN!r}], stdout=nowhere, stderr=nowhere).pid)
"""
"""Keeps no pipe open: whoever reads its parent's output would wait for its end."""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")


@linux
def test_ones_own_work_and_ones_childrens_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the clock of all processors fed by this process alone, nothing is left for others."""
    monkeypatch.setattr(bench, "_all_s", bench._own_s)
    watch = Watch()
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        wait(lambda: bench._own_s() - watch._own > 0.5)
        assert watch.others() < 0.2
        child.kill()


@linux
def test_a_strangers_work_is_seen() -> None:
    """A process that is no child of this one works on."""
    started = subprocess.run([sys.executable, "-c", ORPHAN], check=True, capture_output=True)
    try:
        watch = Watch()
        wait(lambda: watch.others() > 0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(started.stdout), signal.SIGKILL)


def test_a_disturbed_answer_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is quiet, four times at most; the quietest one stays."""
    shares = iter([0.5, 0.2, 0.01])
    monkeypatch.setattr(bench.Watch, "others", lambda _self: next(shares))
    made = []

    class Runner(bench.Runner):
        def __post_init__(self) -> None:
            pass

        def _record(self, *_arguments):
            made.append(bench.RunRecord("x", 1, "a", 0, [], None))
            return made[-1]

    kept = Runner(None, [], bench.Options(), None)._undisturbed(None, None, 0)
    assert (len(made), kept is made[2], kept.others) == (3, True, 0.01)
