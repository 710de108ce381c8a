"""ps_scan against its twin."""

import math

import numpy as np
import pytest
from helpers.score_rows import EDGES, random_row, rows
from helpers.twins import Row, scan
from hypothesis import given
from hypothesis import strategies as st

from pyspec._lib import ffi, lib


def c_scan(row, what=lib.PS_SCAN_LSE):
    out = ffi.new("ps_row *")
    status = lib.ps_scan(ffi.from_buffer("float[]", row), len(row), what, out)
    return status, Row(out.first, out.second, out.z1, out.z2, out.lse)


@given(row=rows())
def test_top2_is_the_twins(level, row):
    status, got = c_scan(row, lib.PS_SCAN_TOP2)
    want = scan(row)
    assert status == lib.PS_OK
    assert (got.first, got.second, got.z1, got.z2) == (want.first, want.second, want.z1, want.z2)


@given(row=rows())
def test_lse_is_the_twins(level, row):
    """Log-sum-exp within what a block's sum in float32 may round: equal terms of one lane all round the same way."""
    status, got = c_scan(row, lib.PS_SCAN_LSE)
    assert status == lib.PS_OK
    assert got.lse == pytest.approx(scan(row).lse, rel=3e-7, abs=2e-5)


@pytest.mark.parametrize("n", [*EDGES, 49152, 151936, 262144])
def test_real_sizes(level, n):
    row = random_row(n, seed=n)
    _, got = c_scan(row)
    want = scan(row)
    assert (got.first, got.second) == (want.first, want.second)
    assert got.lse == pytest.approx(want.lse, rel=2e-7, abs=5e-7)


@given(
    row=rows(), bad=st.sampled_from([math.nan, -math.nan, math.inf]), where=st.integers(0, 2**31)
)
def test_not_finite_is_refused(level, row, bad, where):
    row[where % len(row)] = bad
    for what in (lib.PS_SCAN_TOP2, lib.PS_SCAN_LSE):
        assert c_scan(row, what)[0] == lib.PS_E_NUMERIC


@pytest.mark.parametrize("payload", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_every_nan_is_seen(level, payload):
    row = random_row(1500)
    row.view(np.uint32)[1321] = payload
    assert c_scan(row)[0] == lib.PS_E_NUMERIC


@pytest.mark.parametrize("n", [1, 2, 1024, 4099])
def test_all_minus_infinity_is_refused(level, n):
    assert c_scan(np.full(n, -np.inf, np.float32))[0] == lib.PS_E_NUMERIC


def test_one_entry():
    assert c_scan(np.array([-2.0], np.float32))[1] == Row(0, -1, -2.0, -math.inf, -2.0)


@pytest.mark.parametrize(("n", "what"), [(0, 1), (-1, 1), (4, 2), (4, -1), (4, 4)])
def test_arguments_are_checked(n, what):
    assert lib.ps_scan(ffi.new("float[4]"), n, what, ffi.new("ps_row *")) == lib.PS_E_ARG
    assert lib.ps_scan(ffi.NULL, 4, 1, ffi.new("ps_row *")) == lib.PS_E_ARG
