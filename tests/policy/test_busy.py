"""A machine that others use, by invented times."""

from __future__ import annotations

import logging

import pytest

from pyspec.policy.busy import LONG
from pyspec.policy.cost import CostCurve
from pyspec.policy.shapes import expand
from pyspec.policy.types import Outcome, SeqOutcome


def said(curve: CostCurve, caplog: pytest.LogCaptureFixture, *rounds: tuple[int, float]) -> int:
    """How often the sentence came in rounds of (rows, ms), from the curve alone."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pyspec"):
        for rows, ms in rounds:
            curve.observe(Outcome([SeqOutcome(0, rows - 1, 0)], ms, rows))
    return sum("-t N" in record.message for record in caplog.records)


def measured() -> CostCurve:
    """10 ms for a row, 2 for each more."""
    table = expand({1: 10.0, 16: 40.0})
    return CostCurve.from_tables({0: table}, table, table)


@pytest.mark.parametrize("make", [measured, CostCurve.prior])
def test_said_once_where_it_lasts(make, caplog) -> None:
    """Slow rounds are mentioned after so many, and never again; a guessed curve learns first what is usual."""
    curve = make()
    assert said(curve, caplog, *[(1, 10.0)] * 5) == 0
    assert said(curve, caplog, *[(1, 50.0)] * (LONG - 1)) == 0
    assert said(curve, caplog, (1, 50.0)) == 1
    assert said(curve, caplog, (1, 10.0), *[(1, 90.0)] * 60) == 0


def test_a_measured_curve_needs_no_good_round(caplog) -> None:
    assert said(measured(), caplog, *[(1, 50.0)] * LONG) == 1


def test_a_slow_machine_is_not_busy(caplog) -> None:
    assert said(CostCurve.prior(one_row_ms=1.0), caplog, *[(1, 500.0)] * 100) == 0


def test_stalls_and_less_than_several_times_are_nothing(caplog) -> None:
    """A stall ends, and a machine shared by two is half as fast."""
    rounds = ([(1, 90.0)] * (LONG - 1) + [(1, 10.0)]) * 3
    assert said(measured(), caplog, *rounds) == 0
    assert said(measured(), caplog, *[(1, 30.0)] * 100) == 0


def test_a_count_of_rows_that_was_mistaken_says_nothing_of_others(caplog) -> None:
    """Sixteen rows that were slow at first and then fast: one row is as it always was."""
    curve = CostCurve.prior()
    slow_once = [(1, 10.0)] * 30 + [(16, 400.0)] * 6 + [(16, 40.0)] * 30
    assert said(curve, caplog, *slow_once, *[(1, 10.0)] * 60) == 0


def test_wide_rounds_count_when_they_are_known(caplog) -> None:
    """Eight rows cost more than one: that is no sign, while four times their own time is."""
    curve = measured()
    assert said(curve, caplog, *[(8, 24.0)] * 30, *[(1, 10.0)] * 30) == 0
    assert said(curve, caplog, *[(8, 24.0 * 6)] * 60) == 1
