"""Whether coupled noise is random: uniform along seeds, positions and ids, and independent between neighbours, over many draws.

Each grid is --draws hashes: 49,152 ids at each of some positions, 64 ids at many positions, 64 ids at many seeds. The table shows
how far counts in equal cells deviate from even, in standard deviations: of single numbers (4096 cells), and of each number with
the next one along ids and along positions or seeds (64 by 64). With perfect noise, one of nine such figures is beyond 3 in 2 runs
of a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from common import Made, arguments, keep, made_by, page_of
from measure.draws import noise_of
from measure.report import table

SINGLE, EACH = 4096, 64
AXES = ("ids", "positions", "seeds")
HEAD = ("grid", "draws", "single", "with the next id", "with the next position or seed")


class NoiseFound(Made):
    """A line of the table for each grid."""

    rows: list[list[str]]

    def page(self) -> str:
        """The title, a description and the table."""
        return page_of("Whether coupled noise is noise", __doc__, self.made, table(HEAD, self.rows))


def uniforms(seed: int, position: int, n_ids: int) -> npt.NDArray[np.float64]:
    """The uniform numbers under the noise of ids 0 to n_ids - 1."""
    noise = noise_of(seed, position, np.arange(n_ids, dtype=np.int32))
    found: npt.NDArray[np.float64] = np.exp(-np.exp(-noise))
    return found


def apart(counts: npt.NDArray[np.int64]) -> float:
    """How far counts deviate from even, in standard deviations (Wilson, Hilferty 1931)."""
    due, df = counts.mean(), counts.size - 1
    chi = ((counts - due) ** 2).sum() / due
    return float(((chi / df) ** (1 / 3) - 1 + 2 / (9 * df)) / math.sqrt(2 / (9 * df)))


def measure(axis: str, draws: int) -> list[str]:
    """One grid's line: all ids at one position or seed after the other."""
    n_ids = 49152 if axis == "ids" else 64
    steps = max(2, draws // n_ids)
    single = np.zeros(SINGLE, np.int64)
    beside, after = np.zeros(EACH * EACH, np.int64), np.zeros(EACH * EACH, np.int64)
    before = None
    for step in range(steps):
        u = uniforms(step, 7, n_ids) if axis == "seeds" else uniforms(11, step, n_ids)
        cell = (u * EACH).astype(np.int64)
        single += np.bincount((u * SINGLE).astype(np.int64), minlength=SINGLE)
        beside += np.bincount(EACH * cell[:-1] + cell[1:], minlength=EACH * EACH)
        if before is not None:
            after += np.bincount(EACH * before + cell, minlength=EACH * EACH)
        before = cell
    shown = [f"{apart(counts):+.2f}" for counts in (single, beside, after)]
    return [axis, f"{steps * n_ids:.3g}", *shown]


def main(words: Sequence[str] | None = None) -> None:
    """Print the table; with --out, also store it."""
    options = arguments(__doc__, words, draws=10**8, out=None)
    found = NoiseFound(*made_by("noise", words), [measure(axis, options.draws) for axis in AXES])
    print(table(HEAD, found.rows))
    if options.out:
        keep(found, options.out / "noise.json")


if __name__ == "__main__":
    main()
