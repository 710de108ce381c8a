"""What each test costs, its children included: a run names those that took over PYSPEC_TEST_SECONDS of processor time at its end.

Such a test should be made smaller, or be marked `slow`. It does not fail: the same work takes several times as long on another
machine, and sound work would be lost. What a set-up costs may serve a whole module, so that it is nobody's.
"""

import os
from collections.abc import Generator

import psutil
import pytest

LIMIT_S = float(os.environ.get("PYSPEC_TEST_SECONDS", "inf"))

_COST = "processor seconds"


def spent() -> float:
    """Seconds of processor time of this process, its threads and the children that have ended."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note what a test took, where a run of several processes finds it as well."""
    before = spent()
    result = yield
    item.user_properties.append((_COST, spent() - before))
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
