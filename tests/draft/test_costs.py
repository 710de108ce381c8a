"""Times of decodes: of one model's rows, and of target, draft and companion together."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspec.draft.costs import HEAD, N_MAX, ROWS, CostCurve, KeptTime, RowTimes, expand
from pyspec.draft.types import Outcome, SeqOutcome
from pyspec.errors import OptionError


@pytest.mark.parametrize("points", [ROWS, HEAD])
def test_expand_keeps_measured_points(points):
    table = expand(points)
    assert len(table) == N_MAX + 1
    assert all(table[n] == pytest.approx(t) for n, t in points.items())
    assert all(t > 0.0 for t in table[1:])


@pytest.mark.parametrize("points", [{}, {1: 0.0}, {1: float("nan")}, {0: 1.0}, {2: -1.0}])
def test_expand_refuses_nonsense(points):
    with pytest.raises(OptionError):
        expand(points)


def seen(rows, ms, *, accepted=0, **more):
    return Outcome([SeqOutcome(0, rows - 1, accepted)], ms, rows, **more)


def test_observation_replaces_the_prior():
    curve = CostCurve.prior()
    rng = random.Random(1)  # noqa: S311 - reproducible, not secret
    true = {1: 4.0, 4: 5.0, 5: 12.0}
    for _ in range(40):
        for n, t in true.items():
            curve.observe(seen(n, t * rng.uniform(0.97, 1.03)))
    table = curve.target.table()
    assert all(table[n] == pytest.approx(t, rel=0.03) for n, t in true.items())


def test_one_row_scales_the_rest():
    curve = CostCurve.prior(draft_share=0.1)
    for _ in range(20):
        curve.observe(seen(1, 50.0))
    assert curve.target.table()[1] == pytest.approx(50.0, rel=0.01)
    assert curve.target.table()[4] == pytest.approx(5.0 * ROWS[4], rel=0.01)


def test_with_other_threads_the_first_time_of_a_count_is_believed():
    """Fewer threads make several rows more expensive than one: no mean of both is true of either."""
    curve = RowTimes({0: expand({1: 10.0, 4: 16.0, 8: 24.0})})
    for _ in range(50):
        for rows, ms in ((1, 10.0), (4, 16.0)):
            curve.observe(rows, ms)
    curve.renew()
    for rows, ms in ((1, 12.0), (4, 36.0)):
        curve.observe(rows, ms)
    assert (curve.time(1), curve.time(4)) == pytest.approx((12.0, 36.0))


def test_many_sequences_have_rows_beyond_the_curve():
    times = RowTimes({0: expand({1: 1.0, 64: 64.0})})
    assert times.table(0, 1088)[1088] > 500.0
    for _ in range(30):
        times.observe(1, 1.0)
        times.observe(1000, 500.0)
    assert times.table(0, 1088)[1000] == pytest.approx(500.0, rel=0.05)
    assert times.table()[1] == pytest.approx(1.0, rel=0.05)


def test_catching_up_is_not_a_step():
    curve = CostCurve.prior(draft_share=0.1)
    for _ in range(20):
        curve.observe(seen(4, 20.0, t_draft=3.0, draft_steps=3))
        curve.observe(seen(4, 20.0, t_draft=22.0, draft_steps=3, caught_up=100))
    assert curve.draft.table()[1] == pytest.approx(1.0, rel=0.03)
    assert curve.draft.table(0, 101)[101] == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize(("times", "first"), [(2.0, 2.0), (10.0, 1.0)])
def test_what_reading_costs_is_believed_at_once_or_the_second_time(times, first):
    """Ten times the assumed may be a stall; fast rounds do not make the second one a stall, too."""
    curve = CostCurve.prior(ROWS, 0.1, card=True)
    curve.observe(seen(4, 20.0, accepted=3, t_draft=3.0 * curve.draft.time(1), draft_steps=3))
    assumed, step = curve.draft.time(701), curve.draft.time(1)
    for believed in (first, times):
        took = times * assumed + 2.0 * step
        curve.observe(seen(4, 20.0, t_draft=took, draft_steps=3, caught_up=700))
        for _ in range(7):
            curve.observe(seen(4, 20.0, t_draft=3.0 * step, draft_steps=3))
        assert curve.draft.time(701) == pytest.approx(believed * assumed, rel=0.1)
    assert curve.draft.time(1) == pytest.approx(step, rel=0.05)


def test_a_heads_rows_are_not_taken_for_the_targets():
    """Few weights and many kernels: a step takes more than its share of the bytes, and a prompt many steps."""
    head, draft = (CostCurve.prior(ROWS, 0.06, head=head).draft for head in (True, False))
    assert 1.4 * draft.time(1) < head.time(1) < 2.0
    assert head.time(65) > 1.4 * draft.time(65)


def test_a_machine_that_became_slow_is_believed_the_fourth_time():
    """Three times as slow once, twice or thrice is a stall, or something else that will be over."""
    times = RowTimes({0: expand({1: 1.0, 4: 3.0})})
    for _ in range(20):
        times.observe(1, 10.0)
    seen = []
    for _ in range(4):
        times.observe(1, 30.0)
        seen.append(times.scale)
    assert seen == pytest.approx([10.0, 10.0, 10.0, 30.0], rel=0.2)


def test_a_slow_spell_makes_no_rare_count_look_cheap():
    """Where every round became half slower, four rows still cost three times one."""
    times = RowTimes({0: expand({1: 1.0, 4: 3.0})})
    for _ in range(60):
        times.observe(1, 10.0)
    for _ in range(15):
        times.observe(4, 30.0)
    for _ in range(60):
        times.observe(1, 15.0)
    table = times.table()
    assert table[1] == pytest.approx(15.0, rel=0.02)
    assert table[4] == pytest.approx(45.0, rel=0.05)


@given(st.lists(st.tuples(st.integers(-5, 99), st.floats()), max_size=60))
def test_hostile_times_leave_a_usable_curve(seen):
    times = RowTimes({0: expand({1: 1.0, 8: 4.0})})
    for rows, ms in seen:
        times.observe(rows, ms)
    assert all(0.0 < t < 1e15 for t in times.table()[1:])


def test_a_prior_with_depth_adds_the_same_time_for_each_row():
    target = CostCurve.prior(deeper={1: 0.01, 8: 0.08}).target
    more = [
        deep - shallow for shallow, deep in zip(target.table(0), target.table(1024), strict=True)
    ]
    assert more == pytest.approx([10.24 * n for n in range(N_MAX + 1)])


def test_a_wrong_prior_is_not_taken_for_the_machine():
    """Rows that cost more than assumed, seen again and again without a round of one row, leave one row's time as it is."""
    times, truth = RowTimes({0: expand({1: 10.0, 16: 50.0})}), expand({1: 10.0, 16: 80.0})
    for rows in [1, *range(2, 17)] * 6:
        if rows > 1 or not times.count(1):
            times.observe(rows, truth[rows])
    assert times.table()[1] == pytest.approx(10.0, rel=0.002)


def test_a_curve_begins_with_what_this_machine_took_before():
    curve = CostCurve.prior(ROWS, 0.2)
    before, times = list(curve.target.table()), {1: 4.0, 4: 8.0, 8: 14.0}
    kept = {rows: KeptTime(ms, 3) for rows, ms in times.items()}
    curve.begin_with({}, {})
    assert (curve.target.table(), curve.target.seen()) == (before, {})
    curve.begin_with(kept, {})
    assert [curve.target.time(n) for n in times] == pytest.approx([*times.values()], rel=0.05)
    assert 4.0 < curve.target.time(2) < 8.0
    assert {n: seen.ms for n, seen in curve.target.seen().items()} == pytest.approx(times, rel=0.05)
    curve = CostCurve.prior(ROWS, 0.2)
    curve.begin_with({1: KeptTime(4.0, 3)}, {1: KeptTime(1.5, 3)})
    assert curve.draft.time(1) == pytest.approx(1.5)


@given(st.floats(0.01, 0.5), st.integers(5, 12), st.integers(1, 4))
def test_a_short_round_leaves_no_free_steps(more, steps, caught_up):
    """A round that took little longer than its reading was believed to take was faster as a whole: no step is nearly free."""
    curve = CostCurve.prior({n: 2.0 * ms for n, ms in ROWS.items()}, 0.05, head=True)
    took = curve.draft.time(1 + caught_up) + more
    curve.observe(seen(2, 30.0, t_draft=took, draft_steps=steps, caught_up=caught_up))
    assert curve.draft.table()[1] >= 0.5 * took / (caught_up + steps)


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


def test_a_count_between_two_is_believed_to_be_so_in_its_cost():
    """Four rows take half more than was assumed, and eight what was: six are half-way between."""
    curve = RowTimes({0: [0.0, *(10.0 + 2.0 * n for n in range(64))]})
    for _ in range(8):
        for rows, ms in ((1, 10.0), (4, 24.0), (8, 24.0)):
            curve.observe(rows, ms)
    believed = curve.table()
    assert len(believed) == 65
    assert [believed[n] for n in (4, 6, 8, 12)] == pytest.approx([24.0, 25.0, 24.0, 32.0], rel=0.01)


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
