"""What each instruction set gains in the kernels: microseconds a row, medians over turns in which the levels alternate.

Rows are drawn from a normal distribution and have the sizes of the named vocabularies. A kernel has a copy for each level that
this processor has; a copy that is no faster than the one before it is not worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import numpy as np
from common import arguments
from measure.report import table

from pyspec._lib import check, ffi, lib

LEVELS = ("plain C", "AVX2", "AVX-512")
_CALLS = 20
# in each turn, to suit the clock's resolution


def kernels(n_vocab: int) -> dict[str, Callable[[], int]]:
    """A call of each kernel on rows of this length."""
    draw = np.random.default_rng(1)
    rows = [np.float32(3.0) * draw.standard_normal(n_vocab, np.float32) for _ in range(2)]
    one, two = (ffi.from_buffer("float[]", row) for row in rows)
    row, agreement = ffi.new("ps_row *"), ffi.new("ps_agreement *")
    drafted = ffi.new("int32_t *", 0)
    how = ffi.new("ps_coupling *", {"seed": 1, "temperature": 0.8})
    return {
        "two best": lambda: lib.ps_scan(one, n_vocab, lib.PS_SCAN_TOP2, row),
        "two best, log-sum-exp": lambda: lib.ps_scan(one, n_vocab, lib.PS_SCAN_LSE, row),
        "coupled draw": lambda: lib.ps_draw(one, n_vocab, how, 7, row),
        "agreement": lambda: lib.ps_agree(one, two, 1, n_vocab, drafted, agreement),
    }


def timed(call: Callable[[], int]) -> float:
    """Microseconds for one call."""
    start = perf_counter()
    for _ in range(_CALLS):
        check(call())
    return 1e6 * (perf_counter() - start) / _CALLS


def measure(n_vocab: int, turns: int) -> list[list[str]]:
    """A line for each kernel."""
    calls = kernels(n_vocab)
    levels = range(lib.ps_simd_limit(lib.PS_SIMD_AVX512) + 1)
    found: dict[str, list[list[float]]] = {name: [[] for _ in levels] for name in calls}
    try:
        for _ in range(turns):
            for level in levels:
                lib.ps_simd_limit(level)
                for name, call in calls.items():
                    found[name][level].append(timed(call))
    finally:
        lib.ps_simd_limit(lib.PS_SIMD_AVX512)
    return [
        [name, str(n_vocab), *(f"{median(times):.1f}" for times in by_level)]
        for name, by_level in found.items()
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Print a Markdown table."""
    options = arguments(__doc__, words, ids="49152,151936", turns=30)
    rows = [row for n in options.ids.split(",") for row in measure(int(n), options.turns)]
    print(table(["kernel", "ids", *LEVELS[: len(rows[0]) - 2]], rows))


if __name__ == "__main__":
    main()
