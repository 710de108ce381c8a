"""Tests of pyspec.draft.stopping against slow twins."""

from itertools import product

import numpy as np
import pytest
from grid import CURVES
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.draft.costs import expand
from pyspec.draft.stopping import allocate, best_length, draft_floors, survivals

ROW_TIMES = expand(CURVES["Q4_K_M"].points)

chance = st.floats(0.002, 0.998)
price = st.floats(0.01, 2.0)


@st.composite
def curves(draw, n):
    steps = draw(st.lists(st.floats(0.1, 9.0), min_size=n, max_size=n))
    if draw(st.booleans()):
        tile = draw(st.integers(2, 4))
        steps = [steps[k // tile * tile] for k in range(n)]
    return [0.0, *steps]


@given(st.lists(chance, max_size=12), curves(13), price)
def test_best_length_equals_brute_force(acceptance, rows, at):
    chain = survivals(acceptance)
    verify = rows[1:]
    g = best_length(chain, verify, at)
    values = [1.0 + sum(chain[:k]) - at * verify[k] for k in range(len(chain) + 1)]
    assert values[g] == pytest.approx(max(values), rel=1e-9, abs=1e-9)


@given(st.lists(st.lists(chance, max_size=3), min_size=1, max_size=3), curves(12), price)
def test_allocation_equals_brute_force(chances, rows, at):
    chains = [survivals(c) for c in chances]
    n = len(chains)

    def value(lengths):
        tokens = n + sum(sum(c[:g]) for c, g in zip(chains, lengths, strict=False))
        return tokens - at * rows[n + sum(lengths)]

    best = max(value(g) for g in product(*(range(len(c) + 1) for c in chains)))
    assert value(tuple(allocate(chains, rows, at))) == pytest.approx(best, rel=1e-9, abs=1e-9)


def kept(chain, cost):
    """What a draft brings of which the best length is verified."""
    return max(sum(chain[:c]) - cost[c] for c in range(len(chain) + 1))


def exact(cost, step, values, weights):
    """Optimal stopping with the whole history known, by enumeration."""

    def ahead(chain):
        last = chain[-1] if chain else 1.0
        parts = zip(values, weights, strict=False)
        return sum(w * from_here([*chain, last * a]) for a, w in parts) - step

    def from_here(chain):
        stop = kept(chain, cost)
        return stop if len(chain) == len(cost) - 1 else max(stop, ahead(chain))

    return ahead([])


def by_floors(floors, cost, step, values, weights):
    """Expected value of drafting by floors, and of choosing the best length afterwards."""

    def from_here(chain):
        if len(chain) == len(cost) - 1 or (chain and chain[-1] < floors[len(chain) - 1]):
            return kept(chain, cost)
        last, parts = chain[-1] if chain else 1.0, zip(values, weights, strict=False)
        return sum(w * from_here([*chain, last * a]) for a, w in parts) - step

    return from_here([])


VALUES = st.tuples(st.floats(0.05, 0.6), st.floats(0.6, 0.99))
SHARES = st.floats(0.8, 2.0), st.floats(0.02, 0.3), VALUES, st.floats(0.1, 0.9)


@settings(max_examples=60)
@given(st.sampled_from(sorted(CURVES)), *SHARES)
def test_floors_come_close_to_perfect_look_ahead(name, at, step, values, weight):
    verify = expand(CURVES[name].points)[1:9]
    weights = [weight, 1.0 - weight]
    nexts = np.array(weights), np.array(weights)
    floors, _ = draft_floors(verify, step, at, nexts, values)
    cost = [at * t for t in verify]
    best = exact(cost, at * step, list(values), weights)
    assert by_floors(floors, cost, at * step, list(values), weights) >= best - 0.12


def test_the_gain_of_drafting_has_the_right_sign():
    sure = np.array([1.0]), np.array([1.0])
    verify = ROW_TIMES[1:9]
    assert draft_floors(verify, 0.0, 1.0, sure, [0.998])[1] > 2.0
    assert draft_floors(verify, 0.1, 1.0, sure, [0.002])[1] == pytest.approx(-0.1, abs=0.01)


def expected(step, at, likely):
    """Floors and gain, where every second token is accepted with a chance `likely`, and the others with 0.3."""
    nexts = np.array([0.5, 0.5]), np.array([0.5, 0.5])
    return draft_floors(ROW_TIMES[1:10], step, at, nexts, [0.3, likely])


@given(st.floats(0.0, 0.3), st.floats(0.3, 0.9), st.floats(0.35, 0.9), st.floats(0.01, 0.09))
def test_drafting_gains_less_where_it_costs_more_or_is_refused_more(step, at, likely, change):
    floors, gain = expected(step, at, likely)
    later, gain_of_slow = expected(step + change, at, likely)
    assert gain_of_slow < gain
    assert all(slow >= fast - 1e-9 for fast, slow in zip(floors, later, strict=True))
    assert expected(step, at + change, likely)[1] <= gain + 1e-9
    assert expected(step, at, likely + change)[1] >= gain - 1e-9
