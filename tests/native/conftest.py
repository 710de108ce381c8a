"""Fixtures of the kernels' tests: each test runs on every instruction set this machine has."""

from pathlib import Path

import pytest

from pyspec._lib import lib

NATIVE = Path(__file__).parents[2] / "native"


@pytest.fixture(scope="session")
def native():
    return NATIVE


@pytest.fixture(
    params=range(lib.ps_simd_limit(lib.PS_SIMD_AVX512) + 1),
    ids=["base", "avx2", "avx512"].__getitem__,
)
def level(request):
    assert lib.ps_simd_limit(request.param) == request.param
    yield request.param
    lib.ps_simd_limit(lib.PS_SIMD_AVX512)
