"""What each test costs: a test without the mark `slow` may take PYSPEC_TEST_SECONDS of processor time, its children's included.

.ci/run sets that limit, so that a suite of thousands of tests stays one of minutes. Elsewhere nothing is limited. With
PYSPEC_TEST_COSTS=FILE each test adds its own line there: seconds of set-up, of the test itself, and its name.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

LIMIT_S = float(os.environ.get("PYSPEC_TEST_SECONDS", "inf"))
COSTS = os.environ.get("PYSPEC_TEST_COSTS")

_SET_UP = pytest.StashKey[float]()


def spent() -> float:
    """Seconds of processor time of this process, its threads and the children that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Remember what the set-up cost: it may serve a whole module, so that no limit applies to it."""
    before = spent()
    result = yield
    item.stash[_SET_UP] = spent() - before
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed, but took too long for everybody's suite."""
    before = spent()
    result = yield
    cost = spent() - before
    if COSTS:
        with Path(COSTS).open("a", encoding="utf-8") as costs:
            costs.write(f"{item.stash.get(_SET_UP, 0.0):.2f} {cost:.2f} {item.nodeid}\n")
    if cost > LIMIT_S and not item.get_closest_marker("slow"):
        pytest.fail(f"took {cost:.1f} s of processor time: make it smaller, or mark it slow")
    return result
