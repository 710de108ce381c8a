"""ps_agree against its twin."""

import math

import numpy as np
import pytest
from helpers.score_rows import random_row, rows
from helpers.twins import agreement
from hypothesis import given
from hypothesis import strategies as st

from pyspec._lib import ffi, lib


def c_agree(draft, companion, drafted):
    out = ffi.new("ps_agreement[]", len(drafted))
    ids = np.array(drafted, np.int32)
    status = lib.ps_agree(
        *(ffi.from_buffer("float[]", rows) for rows in (draft, companion)),
        *draft.shape,
        ffi.from_buffer("int32_t[]", ids),
        out,
    )
    return status, [(a.s, a.a, a.pd, a.pc, a.top) for a in out]


@given(row=rows(), seed=st.integers(0, 2**32 - 1), where=st.integers(0, 2**31))
def test_is_the_twins(level, row, seed, where):
    other = np.random.default_rng(seed).permutation(row)
    drafted = where % len(row)
    status, [got] = c_agree(row[None], other[None], [drafted])
    want = agreement(row, other, drafted)
    assert status == lib.PS_OK
    assert got[:4] == pytest.approx(want[:4], rel=2e-5, abs=2e-6)
    assert got[4] == want[4]


@pytest.mark.parametrize("n", [49152, 262144])
def test_real_sizes(level, n):
    draft, companion = random_row(n, 1), random_row(n, 2)
    drafted = int(draft.argmax())
    _, [got] = c_agree(draft[None], companion[None], [drafted])
    assert got[:4] == pytest.approx(agreement(draft, companion, drafted)[:4], rel=5e-6)


@pytest.mark.parametrize(("in_draft", "in_companion", "a"), [
    (-math.inf, 0.0, 1.0),
    (0.0, -math.inf, 0.0),
    (-math.inf, -math.inf, 0.0),
    (-400.0, -401.0, math.exp(-1)),
])  # fmt: skip
def test_ratio_of_the_impossible(level, in_draft, in_companion, a):
    draft, companion = np.zeros((2, 4), np.float32)
    draft[2], companion[2] = in_draft, in_companion
    _, [got] = c_agree(draft[None], companion[None], [2])
    assert got[1] == pytest.approx(a, rel=1e-4)


def test_rows_are_taken_apart(level):
    draft, companion = (
        random_row(4 * 777, 3).reshape(4, 777),
        random_row(4 * 777, 4).reshape(4, 777),
    )
    ids = [5, 776, 0, 300]
    _, together = c_agree(draft, companion, ids)
    alone = [c_agree(draft[i : i + 1], companion[i : i + 1], [ids[i]])[1][0] for i in range(4)]
    assert together == alone


@pytest.mark.parametrize("side", [0, 1])
def test_nan_is_refused(level, side):
    pair = [random_row(300, 5)[None], random_row(300, 6)[None]]
    pair[side][0, 211] = np.nan
    assert c_agree(*pair, [0])[0] == lib.PS_E_NUMERIC


@pytest.mark.parametrize("drafted", [-1, 300])
def test_ids_are_checked(drafted):
    row = random_row(300)[None]
    assert c_agree(row, row, [drafted])[0] == lib.PS_E_ARG
