"""Where the cells lie: enough for every record, never far more than a pool would take; and what prompts begin with alike."""

from hypothesis import given
from hypothesis import strategies as st

from pyspec.engine.contexts import WASTE, Layout, best_parallel, lay_out
from pyspec.engine.kept import common

NEEDS = st.lists(st.integers(1, 8192), min_size=1, max_size=64)


@given(st.integers(1, 64), st.integers(1, 8192), NEEDS, st.booleans())
def test_every_record_fits(n_slots, n_ctx, needs, streams):
    """A stream holds the longest record; a pool holds the longest ones together, and any one that the context allows."""
    needs = sorted((min(need, n_ctx) for need in needs), reverse=True)
    layout = lay_out(n_slots, n_ctx, needs, streams=streams)
    pool = lay_out(n_slots, n_ctx, needs, streams=False)
    assert pool.each == 0
    assert pool.cells >= max(n_ctx, sum(needs[:n_slots]))
    if layout.each:
        assert streams
        assert layout.each >= needs[0]
        assert layout.cells == layout.each * n_slots <= 1.2 * WASTE * pool.cells
    else:
        assert layout == pool


def test_records_of_one_length_get_streams():
    """And one long record among short ones gets a pool."""
    assert lay_out(16, 2048, [200] * 16, streams=True) == Layout(16 * 256, 256)
    assert lay_out(16, 2048, [2000] + [200] * 15, streams=True).each == 0


def test_best_parallel_looks_beyond_a_flat_step():
    """Two rows at the price of two, eight at the price of four: as Q8_0 does on a CPU."""
    times = [0, 1, 2.02, 2.46, 2.68, 3.28, 3.6, 3.7, 3.88, *[5.41] * 7, 6.53]
    assert best_parallel(times) == 16
    assert best_parallel(times[:9]) == 8


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_common_beginning(a, b):
    """Against the slow way; the last token of the second text never counts."""
    slow = 0
    while slow < min(len(a), len(b) - 1) and a[slow] == b[slow]:
        slow += 1
    assert common(a, b) == slow
