"""Coupled noise: the hash and the logarithm against their twins, its distribution and independence, and draws against a sort."""

import math

import numpy as np
import pytest
from helpers.score_rows import rows
from helpers.twins import draw, noise
from hypothesis import given
from hypothesis import strategies as st

from pyspec._lib import ffi, lib


def c_noise(seed, position, ids):
    out = np.empty(len(ids))
    buffers = ffi.from_buffer("int32_t[]", ids), ffi.from_buffer("double[]", out)
    assert lib.ps_noise(seed, position, buffers[0], len(ids), buffers[1]) == lib.PS_OK
    return out


def uniform(g):
    return np.exp(-np.exp(-g))


def far(counts):
    """How far counts of equally likely cells are from even, in standard deviations (Wilson, Hilferty 1931)."""
    due, df = counts.mean(), counts.size - 1
    chi = ((counts - due) ** 2).sum() / due
    return abs((chi / df) ** (1 / 3) - 1 + 2 / (9 * df)) / math.sqrt(2 / (9 * df))


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**40),
    first=st.integers(0, 2**31 - 200),
)
def test_noise_is_the_twins(seed, position, first):
    ids = np.arange(first, first + 100, dtype=np.int32)
    assert c_noise(seed, position, ids) == pytest.approx(
        noise(seed, position, ids), rel=1e-14, abs=1e-15
    )


def test_noise_is_the_same_on_every_machine():
    found = c_noise(1, 2, np.array([0, 1, 49151, 2**31 - 1], np.int32))
    assert [x.hex() for x in found] == KNOWN


KNOWN = [
    "0x1.407f57c94d866p-3",
    "0x1.21b007a7cfe9ep-1",
    "-0x1.1d6aa569e85b1p+0",
    "0x1.470b29d437599p+1",
]


@pytest.mark.parametrize("axis", ["seed", "position", "id"])
def test_noise_is_uniform_along_each_axis(axis):
    """And consecutive draws are independent: pairs fill a grid evenly."""
    n, zero = 1 << 16, np.zeros(1, np.int32)
    if axis == "id":
        g = c_noise(7, 9, np.arange(n, dtype=np.int32))
    elif axis == "position":
        g = np.concatenate([c_noise(7, i, zero) for i in range(n)])
    else:
        g = np.concatenate([c_noise(i, 9, zero) for i in range(n)])
    u = uniform(g)
    assert far(np.histogram(u, 256, (0, 1))[0]) < 4
    assert far(np.histogram2d(u[:-1], u[1:], 32, [(0, 1), (0, 1)])[0]) < 4


def c_draw(row, temperature, min_p, seed, position):
    how = ffi.new("ps_coupling *", {"seed": seed, "temperature": temperature, "min_p": min_p})
    out = ffi.new("ps_row *")
    status = lib.ps_draw(ffi.from_buffer("float[]", row), len(row), how, position, out)
    return status, out.first, out.second, out.z1, out.z2


@given(
    row=rows(),
    temperature=st.sampled_from([0.01, 0.5, 0.8, 1.0, 2.0, 50.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 5000),
)
def test_draw_is_the_twins(level, row, temperature, min_p, seed, position):
    """The two best of all ids, though the kernel looks at few."""
    status, first, second, z1, z2 = c_draw(row, temperature, min_p, seed, position)
    assert status == lib.PS_OK
    want = draw(row, temperature, min_p, seed, position)
    assert (first, second) == want[:2]
    assert (z1, z2) == pytest.approx(want[2:], rel=1e-6)


@pytest.mark.parametrize("scale", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_draws_of_a_real_size_are_the_twins(level, scale, min_p):
    """Flat rows, on which many ids may win, and steep ones."""
    rng = np.random.default_rng(3)
    for position in range(20):
        row = (scale * rng.standard_normal(49152)).astype(np.float32)
        found = c_draw(row, 0.8, min_p, 5, position)
        assert found[1:3] == draw(row, 0.8, min_p, 5, position)[:2]


def c_cut(row, **how):
    coupling = ffi.new("ps_coupling *", {"seed": 1, "temperature": 0.8, **how})
    out = ffi.new("float *")
    view, most = ffi.from_buffer("float[]", row), row.max()
    assert lib.ps_draw_cut(view, len(row), coupling, most, out) == lib.PS_OK
    return row >= most + np.log(out[0]) if out[0] else row > -np.inf


def cut(row, top_k=0, top_p=1.0, min_p=0.0):
    """How many ids of a row a chain leaves, and how many with those that are as good as equal to the last."""
    best = np.sort(row)[::-1][: top_k or None].astype(np.float64)
    mass = np.exp(best - best[0]).cumsum()
    least = best[np.searchsorted(mass, top_p * mass[-1])] if top_p < 1 else best[-1]
    least = max(least, best[0] + math.log(min_p)) if min_p else least
    return (row >= least).sum(), (row >= least - 3e-5).sum()


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("n_vocab", [40, 49152])
@pytest.mark.parametrize("how", [
    {}, {"top_k": 3}, {"top_k": 1}, {"top_k": 256}, {"top_k": 257}, {"top_k": 1000}, {"min_p": 0.05},
    {"top_p": 0.95}, {"top_p": 1e-6}, {"top_k": 40, "top_p": 0.95}, {"top_k": 40, "top_p": 0.3},
    {"top_k": 1000, "top_p": 0.5}, {"top_k": 40, "top_p": 0.95, "min_p": 0.05}, {"top_k": 3, "min_p": 0.05},
], ids=str)  # fmt: skip
def test_a_row_is_cut_as_the_targets_chain_cuts(level, scale, n_vocab, how):
    row = (scale * np.random.default_rng(5).standard_normal(n_vocab)).astype(np.float32)
    fewest, most = cut(row, **how)
    assert fewest <= c_cut(row, **how).sum() <= most


def test_equal_scores_go_to_the_lowest_id():
    row = np.full(100, -np.inf, np.float32)
    row[40] = 1.0
    assert c_draw(row, 1.0, 0.0, 1, 1)[1:3] == (40, -1)


@pytest.mark.parametrize(
    "bad", [{"temperature": 0.0}, {"temperature": math.nan}, {"min_p": 1.5}, {"position": -1}]
)
def test_what_cannot_be_drawn_is_refused(bad):
    asked = {"temperature": 1.0, "min_p": 0.0, "seed": 1, "position": 1, **bad}
    assert c_draw(np.zeros(4, np.float32), **asked)[0] == lib.PS_E_ARG
