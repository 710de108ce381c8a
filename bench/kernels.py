"""What the C kernels cost: microseconds a row and nanoseconds a vocabulary entry, for each instruction set of this machine.

    python bench/kernels.py [--runs 301] [--json FILE]

Medians over many runs on one thread; the rows differ from run to run only in cache state. The bar is top-2 plus log-sum-exp of
262144 entries within 100 microseconds at the avx2 level.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from pyspec._lib import ffi, floats, lib

LEVELS = ["base", "avx2", "avx512"]
SIZES = [49152, 151936, 262144]  # SmolLM2, Qwen2.5, Gemma 3
BAR_US = 100.0


def median_us(call: Callable[[], int], runs: int) -> float:
    """Median time of a call, microseconds, after a few to warm up."""
    for _ in range(5):
        call()
    times = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def kernels(rows: list[np.ndarray]) -> dict[str, Callable[[], int]]:
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
    gate = ffi.new("ps_gate *", [0.9, 1.0, 1e9, -1, 0])
    row = ffi.new("ps_row *", [1, 2, 10.0, 9.5, 0.0, 0.0])
    state, verdict, nats = ffi.new("ps_gate_state *"), ffi.new("int32_t *"), ffi.new("float *")
    return median_us(
        lambda: int(lib.ps_gate_decide(gate, state, row, 1, 2, 0, verdict, nats)), runs
    )


@click.command()
@click.option("--runs", default=301, show_default=True, help="Runs a median is taken of.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path), help="Also write the figures here."
)
def main(runs: int, file: Path | None) -> None:
    """Time every kernel at every size and level."""
    figures = []
    for level in range(lib.ps_simd_limit(lib.PS_SIMD_AVX512) + 1):
        lib.ps_simd_limit(level)
        for n in SIZES:
            rng = np.random.default_rng(1)
            rows = [rng.normal(0, 4, n).astype(np.float32) for _ in range(2)]
            for name, call in kernels(rows).items():
                us = median_us(call, runs)
                figures.append(
                    {
                        "level": LEVELS[level],
                        "kernel": name,
                        "n": n,
                        "us": us,
                        "ns_per_entry": 1000 * us / n,
                    }
                )
                click.echo(
                    f"{LEVELS[level]:7} {name:24} {n:7} {us:8.1f} us  {1000 * us / n:.3f} ns/entry"
                )
    lib.ps_simd_limit(lib.PS_SIMD_AVX512)
    click.echo(f"gate, with its call from Python: {gate_us(runs):.2f} us")
    if file:
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    bar = [
        f
        for f in figures
        if (f["level"], f["kernel"], f["n"]) == ("avx2", "top-2 + lse", SIZES[-1])
    ]
    for figure in bar:
        click.echo(
            f"bar: {figure['us']:.1f} us of {BAR_US:.0f} for top-2 + lse of {SIZES[-1]} entries, avx2"
        )


if __name__ == "__main__":
    main()
