"""What each test costs, its children included: a run names those that took over PYSPEC_TEST_SECONDS of processor time at its end.

Such a test should be made smaller, or be marked `slow`. It does not fail: the same work takes several times as long on another
machine, and sound work would be lost. With PYSPEC_TEST_COSTS=FILE each test adds a line there: seconds of set-up, of the test
itself, and its name.
"""

import os
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

LIMIT_S = float(os.environ.get("PYSPEC_TEST_SECONDS", "inf"))
COSTS = os.environ.get("PYSPEC_TEST_COSTS")

_SET_UP = pytest.StashKey[float]()
_COST = "processor seconds"


def spent() -> float:
    """Seconds of processor time of this process, its threads and the children that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Remember what the set-up cost: it may serve a whole module, so that it is nobody's cost."""
    before = spent()
    result = yield
    item.stash[_SET_UP] = spent() - before
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note what a test took, where a run of several processes finds it as well."""
    before = spent()
    result = yield
    cost = spent() - before
    item.user_properties.append((_COST, cost))
    if COSTS:
        with Path(COSTS).open("a", encoding="utf-8") as costs:
            costs.write(f"{item.stash.get(_SET_UP, 0.0):.2f} {cost:.2f} {item.nodeid}\n")
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that took too long for everybody's suite."""
    costs = {
        report.nodeid: cost
        for report in terminalreporter.stats.get("passed", [])
        for name, cost in report.user_properties
        if name == _COST and cost > LIMIT_S and "slow" not in report.keywords
    }
    if costs:
        long = f"over {LIMIT_S:g} s of processor time: make them smaller, or mark them slow"
        terminalreporter.section(long)
    for name, cost in sorted(costs.items(), key=lambda each: -each[1]):
        terminalreporter.line(f"{cost:6.1f} s  {name}")
