"""Tests of pyspec.draft.row_times: what one model's rows cost, by invented times; see also test_cost.py."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.draft.row_times import KeptTime, RowTimes, expand

POINTS = {1: 10.0, 16: 40.0, 64: 136.0}


def times(points=None):
    return RowTimes({0: expand(points or POINTS)})


def test_times_are_kept_with_how_often_they_were_seen():
    """Up to three: from then on a time is none of chance."""
    curve, counts = times(), []
    for _ in range(5):
        curve.observe(4, 16.0)
        counts.append(curve.seen()[4].seen)
    assert counts == [1, 2, 3, 3, 3]


def test_a_table_is_made_anew_in_few_rounds_and_never_long_ago():
    """It takes time to make, and a machine that became slower is to be known: one decode in ten at most, in twenty at least."""
    curve, made = times(), [0]
    for _ in range(5):
        curve.observe(1, 10.0)
    before = curve.table()
    for n in range(1, 200):
        curve.observe(1, 10.0)
        if curve.table() is not before:
            before = curve.table()
            made.append(n)
    assert all(10 <= b - a <= 20 for a, b in pairwise(made[1:]))
    assert len(made) > 5


def test_a_surprise_is_not_believed_at_once():
    """Four times the expected is a stall, or what was assumed is wrong: a second time says which."""
    curve, rows = times(), 8
    curve.observe(1, 10.0)
    before = curve.time(rows)
    for times_expected in (1.0, 1.0, 4.0):
        assert curve.time(rows) == pytest.approx(times_expected * before, rel=0.05)
        curve.observe(rows, 4.0 * before)
        curve.observe(1, 10.0)


def test_a_depth_costs_what_its_neighbours_do_in_proportion():
    curve = RowTimes({d: expand({1: t}) for d, t in ((1024, 10.0), (3072, 12.0), (4096, 16.0))})
    one = [curve.table(depth)[1] for depth in (0, 1024, 2048, 3072, 3584, 4096, 5120)]
    assert one == pytest.approx([10.0, 10.0, 11.0, 12.0, 14.0, 16.0, 20.0])


def test_a_draft_follows_no_noise_of_the_target():
    """Its table stays while the machine is as fast as it was, within some percent, and goes with a change."""
    target, draft = times(), times()
    before = draft.table()
    target.scale = 1.05
    draft.follow(target)
    assert draft.table() is before
    target.scale = 1.5
    draft.follow(target)
    assert draft.table()[1] == pytest.approx(15.0)


def test_a_count_between_two_is_believed_to_be_so_in_its_cost():
    """Four rows cost twice what was assumed, beyond the first, and eight what was: six are half-way between."""
    curve = RowTimes({0: [0.0, *(10.0 + 2.0 * n for n in range(64))]})
    for _ in range(8):
        for rows, ms in ((1, 10.0), (4, 22.0), (8, 24.0)):
            curve.observe(rows, ms)
    believed = curve.table()
    assert len(believed) == 65
    assert [believed[n] for n in (5, 6, 7)] == pytest.approx([24.0, 25.0, 25.0], rel=0.01)
    assert [believed[n] for n in (2, 3, 12)] == pytest.approx([14.0, 18.0, 32.0], rel=0.01)


@given(st.lists(st.sampled_from([1.0, 1.0, 1.0, 1.0, 5.0, 20.0]), min_size=20, max_size=200))
def test_stalls_make_no_rows_dearer_than_single_ones(stalls):
    taken = {1: 3.0, 2: 4.6, 3: 6.0, 31: 48.0}
    rows, known = [*taken] * len(stalls), dict[int, KeptTime]()
    for _ in range(3):
        curve = times()
        curve.begin_with(known)
        for n, stall in zip(rows, stalls, strict=False):
            curve.observe(n, stall * taken[n])
        known = {**known, **curve.seen()}
        assert all(kept.ms <= 2.2 * n * known[1].ms for n, kept in known.items() if 1 in known)


def test_times_of_an_earlier_process_are_known():
    curve = times()
    curve.begin_with({4: KeptTime(16.0, 3), 8: KeptTime(30.0, 2)})
    assert curve.seen()[4].ms == pytest.approx(16.0)
    assert curve.error(4) < 0.05 < curve.error(8)
