"""The acceptance rule: a table of hand-made rows, and the rule's twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import EXACT, REJECTED, RELAXED, Evidence, Gate, Row, decide, divergence

from pyspec._lib import ffi, lib

INF = math.inf


def c_decide(
    gate: Gate | None,
    row: Row,
    chosen: int,
    drafted: int,
    barred: bool = False,
    gap: float | None = None,
    missing: float = 0.0,
    shown: Evidence | None = None,
) -> tuple[int, float]:
    """The kernel's verdict and nats; moves the gate's state as the kernel does. gap: None for that of a greedy choice."""
    rule = ffi.NULL
    state = ffi.new("ps_gate_state *")
    if gate is not None:
        numbers = (
            "theta", "gap", "budget", "sampled", "confirm", "span", "window", "kl", "doubt",
        )  # fmt: skip
        rule = ffi.new("ps_gate *", {name: getattr(gate, name) for name in numbers})
        state.spent, state.n = gate.spent, len(gate.taken)
        for i, (position, charge) in enumerate(gate.taken):
            state.position[i], state.charge[i] = position, charge
    verdict, nats = ffi.new("int32_t *"), ffi.new("float *")
    seen = ffi.new("ps_row *", [row.first, row.second, row.z1, row.z2, 0])
    gap = greedy_gap(row) if gap is None else gap
    told = ffi.new("ps_evidence *", {**vars(shown or Evidence()), "gap": gap, "missing": missing})
    assert (
        lib.ps_gate_decide(rule, state, seen, told, chosen, drafted, barred, verdict, nats)
        == lib.PS_OK
    )
    if gate is not None:
        gate.spent = np.float32(state.spent)
        gate.taken = [(state.position[i], np.float32(state.charge[i])) for i in range(state.n)]
    return verdict[0], nats[0]


def greedy_gap(row: Row) -> float:
    """z1 - z2, as C has it in single precision."""
    with np.errstate(all="ignore"):
        return float(np.float32(row.z1) - np.float32(row.z2))


def row(z1: float, z2: float) -> Row:
    """A row whose first is token 1 and whose second is token 2."""
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
def test_infinite_gap_is_the_papers_rule(z1: float, z2: float, paper: bool, ours: bool) -> None:
    """With gap = inf the runner-up is taken where z1 > 0 and z2 / z1 > theta, and nowhere else."""
    assert (c_decide(Gate(0.9), row(z1, z2), 1, 2)[0] == RELAXED) is paper


@pytest.mark.parametrize(("z1", "z2", "paper", "ours"), TABLE)
def test_gap_bounds_the_ratio(z1: float, z2: float, paper: bool, ours: bool) -> None:
    """A gap of one nat closes the gate further."""
    assert (c_decide(Gate(0.9, gap=1.0), row(z1, z2), 1, 2)[0] == RELAXED) is ours


@pytest.mark.parametrize(("z1", "z2", "paper", "ours"), TABLE)
@pytest.mark.parametrize("theta", [1.0, 1.5, INF, math.nan])
def test_theta_of_one_closes(theta: float, z1: float, z2: float, paper: bool, ours: bool) -> None:
    """From theta = 1 on nothing is relaxed, ties included."""
    assert c_decide(Gate(theta), row(z1, z2), 1, 2)[0] == REJECTED


@pytest.mark.parametrize("drafted", [0, 3, -1])
def test_third_is_refused(drafted: int) -> None:
    """Only the runner-up may be taken, and -1, which marks a missing second, is no token."""
    assert c_decide(Gate(0.5), row(9.0, 8.9), 1, drafted)[0] == REJECTED
    lonely = Row(0, -1, 9.0, 8.9, 0)
    assert c_decide(Gate(0.5), lonely, 0, -1)[0] == REJECTED


def test_exact_match_goes_first() -> None:
    """The drafted token that the target chose is exact with a closed gate, an open one, barred or none."""
    for gate in (None, Gate(1.0), Gate(0.1)):
        for barred in (False, True):
            assert c_decide(gate, row(9.0, 8.9), 2, 2, barred) == (EXACT, 0.0)


def test_barred_is_never_relaxed() -> None:
    """End-of-generation and control tokens are accepted exactly or not at all."""
    assert c_decide(Gate(0.9), row(9.0, 8.9), 1, 2, barred=True) == (REJECTED, 0.0)


def test_sampled_takes_either_of_two() -> None:
    """Above temperature 0 a first that the sampler passed over may be taken: it is behind nobody."""
    assert c_decide(Gate(0.9), row(9.0, 8.5), 5, 1)[0] == REJECTED
    assert c_decide(Gate(0.9, sampled=True), row(9.0, 8.5), 5, 1) == (RELAXED, 0.0)
    assert c_decide(Gate(0.9, sampled=True), row(9.0, 8.5), 5, 2) == (RELAXED, 0.5)
    assert c_decide(Gate(0.9, sampled=True), row(9.0, 2.0), 5, 1)[0] == REJECTED


def test_gaps_count_in_the_distribution_in_force() -> None:
    """At temperature 2 half a logit is a quarter of a nat; what truncation removed is taken at no price."""
    gate = Gate(0.9, gap=0.3, budget=0.4, sampled=True)
    assert c_decide(gate, row(9.0, 8.5), 5, 2)[0] == REJECTED
    assert c_decide(gate, row(9.0, 8.5), 5, 2, gap=0.25) == (RELAXED, 0.25)
    assert c_decide(gate, row(9.0, 8.5), 5, 2, gap=0.25)[0] == REJECTED  # the budget is spent
    for drafted in (1, 2):
        free = Gate(0.5, sampled=True)
        assert c_decide(free, row(9.0, 8.5), 5, drafted, gap=INF)[0] == REJECTED


@pytest.mark.parametrize("drafted", [1, 2])
def test_budget_of_nothing_is_strict(drafted: int) -> None:
    """Budget 0 closes the gate, also to a token that would cost nothing."""
    assert c_decide(Gate(0.9, budget=0.0, sampled=True), row(9.0, 8.9), 5, drafted)[0] == REJECTED
    assert c_decide(Gate(0.9, budget=0.0), row(9.0, 9.0), 1, 2)[0] == REJECTED


def test_budget_bounds_the_sum() -> None:
    """Relaxed tokens stop before their gaps exceed the budget; a smaller gap may still fit."""
    gate = Gate(0.9, budget=1.25)
    seen = [c_decide(gate, row(10.0, 10.0 - gap), 1, 2) for gap in (0.5, 0.5, 0.5, 0.25, 0.25)]
    assert seen == [
        (RELAXED, 0.5),
        (RELAXED, 0.5),
        (REJECTED, 0.0),
        (RELAXED, 0.25),
        (REJECTED, 0.0),
    ]
    assert gate.spent == 1.25


@pytest.mark.parametrize("drafted", [1, 2])
def test_a_tiny_budget_relaxes_nothing_that_sharpens(drafted: int) -> None:
    """Sampled, the budget is charged -log of the token's probability, the first's as well as the second's."""
    gate = Gate(0.9, budget=1e-6, sampled=True)
    seen = row(9.0, 8.9)
    assert c_decide(gate, seen, 5, drafted, missing=0.7)[0] == REJECTED
    gate = Gate(0.9, budget=2.0, sampled=True)
    taken = [c_decide(gate, seen, 5, drafted, missing=0.7)[0] for _ in range(4)]
    assert taken == [RELAXED, RELAXED, REJECTED, REJECTED]
    assert gate.spent == pytest.approx(2 * (0.7 + 0.1 * (drafted == 2)), abs=1e-5)


def test_a_refusal_spends_nothing() -> None:
    """Nothing is spent on a token that was not taken."""
    gate = Gate(0.9, spent=0.5)
    c_decide(gate, row(9.0, 1.0), 1, 2)
    assert gate.spent == 0.5


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
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(-1, 3), st.booleans()), min_size=1, max_size=8
    ),
)
def test_is_the_twins(z, theta, gap, budget, sampled, force, missing, steps) -> None:
    """Any gate over any run of tokens decides as the twin does and ends in the same state."""
    ours, twin = (Gate(theta, gap, budget, sampled) for _ in range(2))
    for chosen, drafted, barred in steps:
        seen = row(z[0], z[1])
        found = c_decide(ours, seen, chosen, drafted, barred, force, missing)
        assert found == decide(twin, seen, chosen, drafted, barred, force, missing)
    assert ours.spent == twin.spent


def test_null_is_refused() -> None:
    """Results have to go somewhere."""
    assert (
        lib.ps_gate_decide(ffi.NULL, ffi.NULL, ffi.NULL, ffi.NULL, 0, 0, 0, ffi.NULL, ffi.NULL)
        == lib.PS_E_ARG
    )


# -- confirmations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "enough", "short"),
    [
        ({"confirm": 2}, {"behind": 2}, {"behind": 1}),
        ({"kl": 0.5}, {"kl": 0.5}, {"kl": 0.75}),
        ({"kl": 0.5}, {"kl": 0.0}, {"kl": INF}),
        ({"kl": 3e38}, {"kl": 50.0}, {"kl": INF}),
        ({"doubt": 0.5}, {"doubt": 0.5}, {"doubt": 0.25}),
        ({"doubt": 0.5}, {"doubt": 1.0}, {"doubt": math.nan}),
        ({"kl": 0.5}, {"kl": 0.5}, {"kl": math.nan}),
        ({"span": 4, "window": 0.5}, {"position": 4}, {"position": 3}),
    ],
)
def test_each_confirmation_alone_can_refuse(asked, enough, short) -> None:
    """What the gate asks for is enough at its bound and not beyond it, whatever else is there."""
    best = {"behind": 9, "kl": 0.0, "doubt": 1.0, "position": 99}
    for shown, verdict in ((enough, RELAXED), (short, REJECTED)):
        gate = Gate(0.9, taken=[(0, np.float32(0.5))], **asked)
        assert c_decide(gate, row(9.0, 8.5), 1, 2, shown=Evidence(**best | shown))[0] == verdict


def test_without_evidence_only_a_gate_that_asks_for_none_opens() -> None:
    """A lookup has neither a distribution nor, at the end of what is verified, rows behind it."""
    assert c_decide(Gate(0.9), row(9.0, 8.5), 1, 2)[0] == RELAXED
    for asked in ({"confirm": 1}, {"kl": 1.0}, {"doubt": 0.01}):
        assert c_decide(Gate(0.9, **asked), row(9.0, 8.5), 1, 2)[0] == REJECTED


shown_evidence = st.builds(
    Evidence,
    behind=st.integers(0, 4),
    position=st.integers(0, 12),
    kl=limits,
    doubt=st.floats(0, 1, width=32),
)


@given(
    gate=st.fixed_dictionaries(
        {
            "confirm": st.integers(0, 4),
            "span": st.integers(0, 8),
            "window": limits,
            "kl": limits,
            "doubt": st.floats(0, 1, width=32),
            "budget": limits,
            "sampled": st.booleans(),
        }
    ),
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 2, width=32), shown_evidence),
        min_size=1,
        max_size=12,
    ),
)
def test_confirmations_are_the_twins(gate, steps) -> None:
    """Any of them together, over a text whose positions rise."""
    ours, twin = Gate(0.5, **gate), Gate(0.5, **gate)
    position = 0
    for chosen, drafted, gap, shown in steps:
        position += shown.position
        shown.position = position
        seen = row(9.0, 8.5)
        found = c_decide(ours, seen, chosen, drafted, False, gap, 0.25, shown)
        assert found == decide(twin, seen, chosen, drafted, False, gap, 0.25, shown)
        if found[0] == RELAXED:
            assert c_decide(Gate(0.5), seen, 1, 2, gap=gap)[0] == RELAXED  # never beyond the row
    assert ours.spent == twin.spent
    assert ours.taken == twin.taken


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 3000),
    near=st.sampled_from([0.0, 0.1, 1.0]),
    lacking=st.booleans(),
)
def test_divergence_is_the_twins(seed, n, near, lacking) -> None:
    """KL of two rows at every level of instructions, the draft's tokens that it lacks included."""
    rng = np.random.default_rng(seed)
    target = rng.normal(0, 6, n).astype(np.float32)
    draft = (target + near * rng.normal(0, 3, n)).astype(np.float32)
    if lacking and n > 2:
        draft[n // 2 :] = -INF
    out = ffi.new("float *")
    pointers = [ffi.cast("float *", x.ctypes.data) for x in (draft, target)]
    level = lib.ps_simd_limit(2)
    for limit in range(level + 1):
        lib.ps_simd_limit(limit)
        assert lib.ps_divergence(*pointers, n, out) == lib.PS_OK
        assert out[0] == pytest.approx(divergence(draft, target), rel=1e-4, abs=1e-4)
    lib.ps_simd_limit(2)
