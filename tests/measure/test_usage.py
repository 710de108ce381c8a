"""Other programs' work is noticed, one's own is not."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from pyspec.measure import bench, usage
from pyspec.measure.usage import Watch

SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"


def test_ones_own_work_and_ones_childrens_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the clock of all processors fed by this process alone, nothing is left for others."""
    monkeypatch.setattr(usage, "_all_s", usage._own_s)
    watch = Watch()
    child = subprocess.Popen([sys.executable, "-c", SPIN.format(5)])
    time.sleep(0.5)
    assert watch.others() < 0.2
    child.kill()
    child.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_a_strangers_work_is_seen() -> None:
    """A process that is no child of this one takes most of a processor."""
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN.format(2)!r}])"
    subprocess.run([sys.executable, "-c", orphan], check=True)
    watch = Watch()
    time.sleep(1.0)
    assert watch.others() > 0.1


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

    kept = Runner(None, [], bench.Options(), None, None)._undisturbed(None, None, 0)
    assert (len(made), kept is made[2], kept.others) == (3, True, 0.01)
