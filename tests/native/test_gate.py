"""The acceptance rule: a table of hand-made rows, and the rule's twin."""

import math

import numpy as np
import pytest
from helpers.twins import EXACT, REJECTED, RELAXED, Gate, Row, decide
from hypothesis import given
from hypothesis import strategies as st

from pyspec._lib import ffi, lib

INF = math.inf


def c_decide(gate, row, chosen, drafted, barred=False, gap=None, missing=0.0, behind=0):
    """The kernel's verdict and nats; moves the gate's state as the kernel does. gap: None for that of a greedy choice."""
    rule = ffi.NULL
    state = ffi.new("ps_gate_state *")
    if gate is not None:
        numbers = "theta", "gap", "budget", "sampled", "confirm"
        rule = ffi.new("ps_gate *", {name: getattr(gate, name) for name in numbers})
        state.spent = gate.spent
    verdict, nats = ffi.new("int32_t *"), ffi.new("float *")
    seen = ffi.new("ps_row *", [row.first, row.second, row.z1, row.z2, 0])
    gap = greedy_gap(row) if gap is None else gap
    told = ffi.new("ps_evidence *", {"gap": gap, "missing": missing, "behind": behind})
    assert (
        lib.ps_gate_decide(rule, state, seen, told, chosen, drafted, barred, verdict, nats)
        == lib.PS_OK
    )
    if gate is not None:
        gate.spent = np.float32(state.spent)
    return verdict[0], nats[0]


def greedy_gap(row):
    """z1 - z2, as C has it in single precision."""
    with np.errstate(all="ignore"):
        return float(np.float32(row.z1) - np.float32(row.z2))


def row(z1, z2):
    return Row(1, 2, z1, z2, 0)


# z1, z2, whether the paper's rule (theta 0.9, z1 > 0) opens, whether gap 1.0 leaves it open
TABLE = [
    (20.0, 19.5, True, True),
    (20.0, 18.5, True, False),  # the ratio opens at 1.5 nats
    (20.0, 18.0, False, False),  # just on theta
    (5.0, 4.6, True, True),
    (5.0, 4.4, False, False),
    (0.5, 0.4, False, False),  # 0.1 nats apart, yet the ratio is 0.8
    (7.0, 7.0, True, True),  # tied
    (0.0, 0.0, False, False),  # tied at zero: no ratio
    (0.0, -1.0, False, False),
    (3.0, -3.0, False, False),
    (-1.0, -1.0, False, False),  # tied below zero
    (-1.0, -50.0, False, False),  # the ratio is 50
    (-20.0, -20.1, False, False),
    (3e38, 2.9e38, True, False),  # huge
    (3e38, 3e38, True, True),
    (3e38, -3e38, False, False),  # the difference overflows
    (1e-38, 1e-38, True, True),
    (5.0, -INF, False, False),
    (INF, 5.0, False, False),
    (INF, INF, False, False),
    (math.nan, 5.0, False, False),
    (5.0, math.nan, False, False),
]


@pytest.mark.parametrize(("z1", "z2", "paper", "ours"), TABLE)
def test_infinite_gap_is_the_papers_rule(z1, z2, paper, ours):
    assert (c_decide(Gate(0.9), row(z1, z2), 1, 2)[0] == RELAXED) is paper


@pytest.mark.parametrize(("z1", "z2", "paper", "ours"), TABLE)
def test_gap_bounds_the_ratio(z1, z2, paper, ours):
    assert (c_decide(Gate(0.9, gap=1.0), row(z1, z2), 1, 2)[0] == RELAXED) is ours


def test_without_a_gate_only_the_choice_is_taken():
    assert c_decide(None, row(9.0, 8.9), 2, 2) == (EXACT, 0.0)
    assert c_decide(None, row(9.0, 8.9), 1, 2) == (REJECTED, 0.0)


logits = st.one_of(st.floats(-40, 40, width=32), st.integers(-3, 3).map(float), st.floats(width=32))
limits = st.one_of(st.floats(0, 3, width=32), st.just(INF))


@given(
    z=st.tuples(logits, logits).map(lambda pair: sorted(pair, key=lambda x: -x)),
    theta=st.floats(-0.5, 1.25, width=32),
    gap=limits,
    budget=limits,
    sampled=st.booleans(),
    force=st.one_of(st.none(), limits),
    missing=limits,
    confirm=st.integers(0, 4),
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(-1, 3), st.booleans(), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    ),
)
def test_is_the_twins(z, theta, gap, budget, sampled, force, missing, confirm, steps):
    ours, twin = (Gate(theta, gap, budget, sampled, confirm) for _ in range(2))
    for chosen, drafted, barred, behind in steps:
        seen = row(z[0], z[1])
        found = c_decide(ours, seen, chosen, drafted, barred, force, missing, behind)
        assert found == decide(twin, seen, chosen, drafted, barred, force, missing, behind)
    assert ours.spent == twin.spent


def test_null_is_refused():
    assert (
        lib.ps_gate_decide(ffi.NULL, ffi.NULL, ffi.NULL, ffi.NULL, 0, 0, 0, ffi.NULL, ffi.NULL)
        == lib.PS_E_ARG
    )
