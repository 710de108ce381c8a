"""Cost curves assumed before a machine was timed, and curves at any row count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pyspec.errors import OptionError

N_MAX = 64

SHAPES: Mapping[str, Mapping[int, float]] = {
    # In units of one row. CPU: measured on two AVX-512 cores with a 135M model, flash attention on, 64 positions of context
    # (Q4_0, Q8_0: off, another machine). GPU: published measurements of llama.cpp (34B Q8_0 on CUDA, op level on Metal).
    "Q4_1": {1: 1, 2: 1.78, 3: 2.17, 4: 2.65, 5: 3.30, 6: 3.77, 8: 4.25, 12: 6.17, 16: 7.75},
    "Q4_0": {1: 1, 2: 1.53, 3: 1.95, 4: 2.24, 5: 2.92, 6: 3.35, 8: 3.60, 12: 4.99, 16: 5.11},
    "Q8_0": {1: 1, 2: 2.02, 3: 2.46, 4: 2.68, 5: 3.28, 6: 3.60, 8: 3.88, 12: 5.41, 16: 6.53},
    "Q4_K_M": {1: 1, 2: 1.44, 3: 1.68, 4: 1.96, 5: 2.63, 6: 2.85, 8: 3.04, 12: 4.00, 16: 4.94},
    "BF16": {1: 1, 2: 1.68, 3: 1.89, 4: 2.12, 5: 2.21, 6: 2.32, 8: 2.61, 12: 3.12, 16: 3.67},
    "cuda": {1: 1, 8: 1.74, 9: 3.89, 16: 4.1, 64: 5.0},
    # A draft that reads the target's states, in units of one of its own steps: from the drafts on the pages of the default target
    # in three types. The value for 64 rows is a prompt being read.
    "head": {1: 1, 2: 2.2, 4: 3.6, 8: 4.9, 16: 8.0, 64: 24.0},
    "metal": {1: 1, 2: 1.3, 4: 1.7, 8: 2.5, 9: 3.2, 16: 3.8, 64: 8.0},
}
DEFAULT_SHAPE = "Q4_K_M"


class Experts(NamedTuple):
    """A mixture of experts. held: by a layer; used: by a row; share: of the bytes that a row reads."""

    held: int
    used: int
    share: float


def with_experts(times: Sequence[float], experts: Experts) -> list[float]:
    """A curve of a mixture from that of a model whose rows share all weights.

    Rows choose experts as if independently, and each chosen one is read: on a model of 64 experts, 8 of them used, this is within
    16 % of what 3 to 8 rows were measured to take.
    """
    held, used, share = experts
    read = [times[1] * held / used * (1.0 - (1.0 - used / held) ** n) for n in range(len(times))]
    return [t + share * max(0.0, more - t) for t, more in zip(times, read)]


def expand(points: Mapping[int, float]) -> list[float]:
    """Times for 0..N_MAX rows from measured points {rows: time}; entry 0 is 0; rows beyond the last point follow `time_at`.

    Linear between neighbours. Raises OptionError on an empty curve or impossible times.
    """
    known = sorted((int(n), float(t)) for n, t in points.items())
    if not known or known[0][0] < 1 or not all(0.0 < t < 1e9 for _, t in known):
        raise OptionError("a cost curve needs positive, finite times for one or more rows")
    rows, times = zip(*known, strict=True)
    inside = [0.0, *np.interp(range(1, rows[-1] + 1), rows, times).tolist()]
    return [time_at(inside, n) for n in range(N_MAX + 1)]


def time_at(base: Sequence[float], rows: int) -> float:
    """A curve at any row count: beyond its end it has the slope of its upper half, so no single step is taken for a trend."""
    last = len(base) - 1
    if rows <= last:
        return base[rows]
    half = last // 2
    return base[last] + (rows - last) * max(0.0, base[last] - base[half]) / (last - half)
