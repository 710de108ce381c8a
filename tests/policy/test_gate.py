"""Tests of pyspec.policy.gate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspec.policy.gate import PROBE_MIN, Gate, Starts


def play(gate: Gate, gain: float, rounds: int) -> tuple[int, float]:
    """(uses, tokens lost) over rounds in which each use gains the same."""
    uses, lost = 0, 0.0
    for _ in range(rounds):
        if gate.ask()[0]:
            gate.tell(gain, gain)
            uses, lost = uses + 1, lost - gain
        else:
            gate.rest()
    return uses, lost


def test_a_use_that_never_pays_is_switched_off() -> None:
    """Hopeless uses cost at most one percent of the tokens and a small allowance."""
    uses, lost = play(Gate(), -0.3, 4000)
    assert uses < 50
    assert lost < 0.01 * 4000 + 2.0


def test_probing_goes_on_and_finds_a_change() -> None:
    """After long failure a gate still notices that its use now pays, and stays on."""
    gate = Gate()
    play(gate, -0.1, 1000)
    uses, _ = play(gate, 0.8, 2000)
    assert uses > 1000
    assert play(gate, 0.8, 100)[0] == 100


def test_the_first_probe_waits() -> None:
    """Without evidence nothing is used before the first probe is due."""
    gate = Gate()
    for _ in range(PROBE_MIN):
        assert gate.ask() == (False, False)
        gate.rest()
    assert gate.ask() == (True, True)


def test_a_good_expectation_opens_the_gate() -> None:
    """What the model of the use expects decides before anything was observed."""
    assert Gate().ask(0, 0.5) == (True, False)
    assert Gate().ask(0, -0.5) == (False, False)


def test_debt_closes_an_optimistic_gate() -> None:
    """Realised losses stop the use even while estimates stay positive."""
    gate = Gate()
    for _ in range(100):
        if gate.ask(0, 1.0)[0]:
            gate.tell(1.0, -0.5)
        else:
            gate.rest()
    assert gate.uses < 15


@given(st.lists(st.tuples(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0)), max_size=400))
def test_losses_are_bounded_whatever_happens(rounds: list[tuple[float, float]]) -> None:
    """Net loss never exceeds the allowance, the credit, one use and a percent of the tokens."""
    gate = Gate(contexts=3)
    net = worst = peak = 0.0
    for i, (gain, realised) in enumerate(rounds):
        if gate.ask(i % 3)[0]:
            gate.tell(gain, realised, i % 3, (i + 1) % 3)
            net += realised
        else:
            gate.rest()
        peak = max(peak, net)
        worst = max(worst, peak - net)
    assert worst <= 1.5 + 6.0 + 3.0 + 0.01 * len(rounds)


def test_starts_back_off_and_come_back() -> None:
    """Answers that lose make trials rare, never extinct; one good answer brings them back."""
    starts = Starts()
    tried = 0
    for _ in range(100):
        starts.begin()
        if starts.open:
            starts.add(-2.0)
            tried += 1
    assert 8 < tried < 30
    while not starts.open:
        starts.begin()
    starts.add(60.0)
    starts.begin()
    assert starts.open
