"""Rows of logits for the kernels' tests."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

#  around the vectors' width, the search step and the block of the kernels
EDGES = [1, 2, 3, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 2047, 2049, 5000]

_ordinary = st.floats(-60, 60, width=32)
_tied = st.integers(-3, 3).map(float)
_any = st.floats(allow_nan=False, width=32).filter(lambda x: x != float("inf"))
_values = st.one_of(_ordinary, _tied, _any)


@st.composite
def rows(draw: st.DrawFn, values: st.SearchStrategy[float] = _values) -> np.ndarray:
    """A row in which a few drawn values are spread over a drawn length, with at least one finite value."""
    few = draw(hnp.arrays(np.float32, st.integers(1, 40), elements=values))
    n = draw(st.one_of(st.integers(1, 70), st.sampled_from(EDGES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    row = rng.choice(few, n)
    row[rng.integers(n)] = draw(_ordinary)
    return row


def random_row(n: int, seed: int = 0, scale: float = 4.0) -> np.ndarray:
    """Normal logits, as a model's are roughly."""
    return np.random.default_rng(seed).normal(0, scale, n).astype(np.float32)
