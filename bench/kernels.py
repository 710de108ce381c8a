"""What the C kernels cost: microseconds a row and nanoseconds a vocabulary entry, for each instruction set of this machine.

    python bench/kernels.py [--runs 301] [--entries 49152,151936,262144]

Medians over many runs on one thread; the rows differ from run to run only in cache state. The bar is top-2 plus log-sum-exp of
262144 entries within 100 microseconds at the avx2 level.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from pyspec._lib import ffi, floats, lib
from pyspec.engine.handle import Gate
from pyspec.rules import Margin

LEVELS = ("base", "avx2", "avx512")
SIZES = "49152,151936,262144"  # SmolLM2, Qwen2.5, Gemma 3


def median_us(call: Callable[[], int], runs: int) -> float:
    """Median time of a call, microseconds, after a few to warm up."""
    times = []
    for _ in range(runs + 5):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times[5:]) / 1000


def kernels(rows: Sequence[np.ndarray]) -> dict[str, Callable[[], int]]:
    """The kernels as calls without arguments, on two rows that the caller keeps alive."""
    n = len(rows[0])
    draft, companion = floats(rows[0]), floats(rows[1])
    row, seen = ffi.new("ps_row *"), ffi.new("ps_agreement *")
    drafted = ffi.new("int32_t *", int(rows[0].argmax()))

    def scan(what: int) -> Callable[[], int]:
        return lambda: int(lib.ps_scan(draft, n, what, row))

    return {
        "top-2": scan(lib.PS_SCAN_TOP2),
        "top-2 + lse": scan(lib.PS_SCAN_LSE),
        "top-2 + lse + entropy": scan(lib.PS_SCAN_ENTROPY),
        "agreement of two rows": lambda: int(lib.ps_agree(draft, companion, 1, n, drafted, seen)),
    }


def gate_us(runs: int) -> float:
    """One decision of the margin gate, cffi's call included."""
    gate = Gate(Margin(), sampled=False)
    row = ffi.new("ps_row *", {"first": 1, "second": 2, "z1": 10.0, "z2": 9.5})
    verdict, nats = ffi.new("int32_t *"), ffi.new("float *")
    return median_us(
        lambda: int(lib.ps_gate_decide(gate.gate, gate.state, row, 0.5, 1, 2, 0, verdict, nats)),
        runs,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Time every kernel at every size and level."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=301, help="runs a median is taken of")
    parser.add_argument("--entries", default=SIZES, help="sizes of a vocabulary, comma-separated")
    options = parser.parse_args(arguments)
    for level in range(lib.ps_simd_limit(lib.PS_SIMD_AVX512) + 1):
        lib.ps_simd_limit(level)
        for n in map(int, options.entries.split(",")):
            rng = np.random.default_rng(1)
            rows = [rng.normal(0, 4, n).astype(np.float32) for _ in range(2)]
            for name, call in kernels(rows).items():
                us = median_us(call, options.runs)
                print(
                    f"{LEVELS[level]:7} {name:24} {n:7} {us:8.1f} us  {1000 * us / n:.3f} ns/entry"
                )
    lib.ps_simd_limit(lib.PS_SIMD_AVX512)
    print(f"gate, with its call from Python: {gate_us(options.runs):.2f} us")


if __name__ == "__main__":
    main()
