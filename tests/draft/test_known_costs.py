"""Drafts where it is known what decodes take: whether they pay is up to their texts."""

from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.row_times import expand
from pyspec.draft.types import Draft, Outcome, Place, SeqOutcome


def test_one_refused_draft_ends_no_drafting_where_drafts_win():
    """A short text whose first draft is long and all wrong has lost more than its share; the texts before it won much."""
    table = expand({1: 10.0, 64: 80.0})
    policy = GoodputPolicy(CostCurve.from_tables({0: table}, [0.1 * t for t in table], table))

    def go_on(depth, right):
        (n,) = policy.plan([Place(0, 16, 1, 75 - depth, depth)]).lengths
        if n:
            (g,) = policy.choose([Draft(0, 8, [0.95] * 8)])
            seen = [SeqOutcome(0, g, g if right else 0)]
            policy.observe(Outcome(seen, table[g + 1], g + 1, 8.0, 8))
        return n

    for _ in range(3):
        policy.begin_answer()
        assert all(go_on(depth, right=True) for depth in range(50, 70, 5))
    policy.begin_answer()
    assert go_on(50, right=False)
    assert go_on(51, right=True)


def test_a_draft_that_pays_in_no_text_is_not_looked_at():
    """Rows too expensive for any acceptance that a text may have: not even once, while a draft that may pay is tried."""
    drafted = {}
    for name, points in (
        ("expensive", {1: 10.0, 2: 25.0, 64: 900.0}),
        ("cheap", {1: 10.0, 64: 80.0}),
    ):
        table = expand(points)
        policy = GoodputPolicy(CostCurve.from_tables({0: table}, [0.05 * t for t in table], table))
        drafted[name] = policy.plan([Place(0, 16, 0, 200, 50)]).lengths[0]
    assert drafted == {"expensive": 0, "cheap": 16}


def test_drafting_costs_more_where_rounds_with_drafts_win():
    """A ms could go into the next round with drafts: floors rise once such rounds have won, with the same curve and table."""
    table = expand({1: 10.0, 2: 12.0, 16: 40.0})
    floors = []
    for won in (0.0, 2.0):
        policy = GoodputPolicy(CostCurve.from_tables({0: table}, [0.1 * t for t in table], table))
        for _ in range(20):
            policy._drafting[0].used(won, 3.0)
        floors.append(policy.plan([Place(0, 16, 0, 200, 50)]).floors)
    assert all(high > low for low, high in zip(floors[0][:10], floors[1][:10], strict=True))
