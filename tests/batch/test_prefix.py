"""What prompts begin with alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspec.batch.packing import common


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_common_beginning(a, b):
    """Against the slow way; the last token of the second text never counts."""
    slow = 0
    while slow < min(len(a), len(b) - 1) and a[slow] == b[slow]:
        slow += 1
    assert common(a, b) == slow
