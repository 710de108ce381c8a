"""Rows of a decode: shared fairly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspec.engine.rows import share_rows


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    st.integers(0, 600),
)
def test_rows_are_shared_fairly(missing, budget):
    """Never over the budget or over what is missing, nothing left over, and the first always gets some."""
    shares = share_rows(list(enumerate(missing)), budget)
    given_ = dict(shares)
    assert len(given_) == len(shares)
    assert sum(given_.values()) == min(budget, sum(missing))
    assert all(0 < n <= missing[seq] for seq, n in shares)
    assert budget == 0 or given_[0] >= min(missing[0], max(1, budget // 4))
