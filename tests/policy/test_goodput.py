"""Tests of pyspec.policy.goodput and of the simulator that plays it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import Place as Seat
from replay import geomean, load_costs, replay, speeds
from replay_policies import Costs, Oracle, Ours, Simple
from replay_synthetic import synthetic

from pyspec.measure.rounds import Header, group, read_answers, write_rounds
from pyspec.policy.cost import CostCurve, expand, shape
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.lengths import Companion
from pyspec.policy.types import LOOKUP, Draft, Outcome, Place, SeqOutcome

TINY = {"1": 1.0, "16": 4.6, "64": 15.0}
CHEAP = {"one_ms": 9.4, "shape": "Q4_K_M", "draft": 0.08, "companion": 0.06}
DEAR = {"one_ms": 20.0, "points": {"1": 1, "8": 8.2, "64": 60}, "draft": 0.1, "companion": 0.1}


def known(costs: Costs) -> CostCurve:
    """A measured curve."""
    return CostCurve.from_tables({0: costs.target[:65]}, costs.draft[:65], costs.companion[:65])


def outcome(n: int, accepted: int, steps: int = 1, more: bool | None = None) -> Outcome:
    """One round of one sequence at unit costs."""
    seq = SeqOutcome(0, n, accepted, next_match=more)
    return Outcome([seq], 10.0 + n, 1 + n, t_draft=1.0 * steps, draft_steps=steps)


@pytest.mark.parametrize(("entry", "seed"), [(CHEAP, 1), (CHEAP, 2), (DEAR, 1), (DEAR, 2)])
def test_auto_never_falls_far_below_plain_and_nears_the_best_fixed(
    entry: dict[str, object], seed: int
) -> None:
    """On synthetic rounds: 0.98 of plain in each category, 0.98 of the best fixed in the mean."""
    costs = load_costs(entry, TINY)
    answers = group(synthetic(seed, 8))
    players = [Simple(costs, k) for k in (0, 1, 2, 3, 5)]
    results = {p.name: replay(p, answers, 1) for p in players}
    results["auto"] = replay(Ours("auto", costs, GoodputPolicy(known(costs))), answers, 1)
    rows = speeds(results, sorted({a.category for a in answers}))
    assert min(rows["auto"]) >= 0.98
    fixed = [geomean(row) for name, row in rows.items() if name != "auto"]
    assert geomean(rows["auto"]) >= 0.98 * max(fixed)


def test_nothing_beats_the_oracle() -> None:
    """The oracle's whole-answer optimum bounds every other policy."""
    costs = load_costs(CHEAP, TINY)
    answers = group(synthetic(4, 2))
    total = lambda r: r["all"][1]  # noqa: E731
    oracle = total(replay(Oracle(costs), answers, 1))
    others = [Simple(costs, k) for k in (0, 1, 3)] + [Simple(costs, 16, 0.75)]
    auto = Ours("auto", costs, GoodputPolicy(known(costs)))
    assert all(total(replay(p, answers, 1, 0)) >= oracle for p in (*others, auto))


def test_a_drafter_that_is_never_right_is_switched_off() -> None:
    """Within 60 rounds drafting stops, and the loss stays small."""
    policy = GoodputPolicy(known(load_costs(CHEAP, TINY)))
    drafted = []
    policy.begin_answer()
    for _ in range(400):
        plan = policy.plan([Place(0, 16)])
        n = min(plan.lengths[0], 2)
        if n:
            g = policy.choose([Draft(0, n, [0.9] * n, [0.3] * n)])[0]
            policy.observe(outcome(g, 0, n, more=None if g else False))
        else:
            policy.observe(outcome(0, 0, 0))
        drafted.append(n > 0)
    assert sum(drafted[60:]) < 10


def test_a_drafter_that_is_always_right_is_used_at_length() -> None:
    """On a cheap curve with certain acceptance long drafts are verified."""
    policy = GoodputPolicy(known(load_costs(CHEAP, TINY)))
    policy.begin_answer()
    for _ in range(150):
        plan = policy.plan([Place(0, 16)])
        n = min(plan.lengths[0], 8)
        g = policy.choose([Draft(0, n, [0.95] * n, [0.1] * n)])[0] if n else 0
        policy.observe(Outcome([SeqOutcome(0, g, g)], 9.4 + 2.0 * g, 1 + g, 0.8 * n, n))
    assert policy.stats()["tokens_accepted"] > 300


def test_the_companion_is_dropped_where_it_knows_nothing_new() -> None:
    """A companion that echoes the draft costs time and is used in few rounds."""
    costs = load_costs({**CHEAP, "companion": 0.3}, TINY)
    policy = GoodputPolicy(known(costs), companion=True)
    used = 0
    for k in range(600):
        plan = policy.plan([Place(0, 16)])
        n = min(plan.lengths[0], 3)
        draft = Draft(0, n, [0.6] * n, [1.0] * n)
        rows = 0
        if plan.use_companion and n:
            used, rows = used + 1, n
            draft.s, draft.a, draft.pc, draft.agree = [1.0] * n, [1.0] * n, [0.6] * n, [True] * n
        g = policy.choose([draft])[0] if n else 0
        m = min(g, k % 4)
        policy.observe(Outcome([SeqOutcome(0, g, m)], costs.target[1 + g], 1 + g, 0.8 * n, n,
                               costs.companion[rows], rows))  # fmt: skip
    assert used < 60


def test_rounds_without_plan_or_choose_are_harmless() -> None:
    """The loop may skip both, and may share a batch with prompts."""
    policy = GoodputPolicy(CostCurve())
    policy.observe(Outcome([SeqOutcome(0, 0, 0)], 10.0, 1))
    policy.observe(Outcome([SeqOutcome(0, 0, 0), SeqOutcome(1, 0, 0)], 90.0, 200))
    policy.observe(Outcome([], 0.0, 0))
    assert policy.stats()["rounds"] == 2


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 6),
            st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=6, max_size=6),
            st.integers(0, 6),
            st.floats(allow_nan=True, allow_infinity=True),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_hostile_rounds_never_break_the_choice(
    rounds: list[tuple[int, list[float], int, float, bool]],
) -> None:
    """NaN probabilities and absurd times: lengths stay in range and statistics finite."""
    policy = GoodputPolicy(CostCurve(), companion=True, auto_draft=False)
    for n, p, accepted, ms, lookup in rounds:
        plan = policy.plan([Place(0, 6)])
        assert all(math.isfinite(f) for f in plan.floors)
        draft = Draft(0, n, p[:n], p[:n], p[:n], p[:n], p[:n], [True] * n)
        if lookup:
            draft = Draft(0, n, source=LOOKUP, match_length=n)
        g = policy.choose([draft])[0]
        assert 0 <= g <= n
        m = min(accepted, g)
        policy.observe(Outcome([SeqOutcome(0, g, m)], ms, 1 + g, ms, n, ms, n, ms))
    assert all(math.isfinite(v) for v in policy.stats().values() if isinstance(v, float))


def test_several_sequences_share_the_rows() -> None:
    """With eight sequences every length is in range and someone gets tokens on a flat curve."""
    flat = expand({1: 10.0, 64: 11.0})
    policy = GoodputPolicy(CostCurve.from_tables({0: flat}, flat, flat), auto_draft=False)
    policy.plan([Place(i, 16) for i in range(8)])
    drafts = [Draft(i, 4, [0.2 + 0.09 * i] * 4, [1.0] * 4) for i in range(8)]
    lengths = policy.choose(drafts)
    assert len(lengths) == 8
    assert all(0 <= g <= 4 for g in lengths)
    assert lengths[7] == 4


def test_the_price_of_time_lengthens_nothing_for_free() -> None:
    """On a dear curve `companion` may draft, but verifies nothing that is unlikely."""
    dear = {n: 10.0 * n for n in range(1, 65)}
    table = expand(dear)
    policy = Companion().policy(CostCurve.from_tables({0: table}, table, table))
    policy.plan([Place(0, 8)])
    assert policy.choose([Draft(0, 3, [0.5] * 3, [1.0] * 3)]) == [0]


def test_records_round_trip(tmp_path) -> None:
    """What the generator writes, the replay reads: same chains, same positions."""
    chains = list(synthetic(9, 1, length=24))
    path = tmp_path / "rounds.jsonl"
    write_rounds(path, Header(1, "t", "d", "c"), chains)
    with path.open("rb") as lines:
        assert read_answers(lines) == group(chains)


def test_a_file_of_other_content_is_refused() -> None:
    """The first line must say what the file is; errors name the line."""
    with pytest.raises(ValueError, match="line 1"):
        read_answers(['{"answer": 1}'])
    with pytest.raises(ValueError, match="line 2"):
        read_answers(['{"pyspec_rounds": 1}', '{"answer": 1}'])


def test_a_round_goes_on_behind_what_was_accepted() -> None:
    """The simulator walks every answer to its end, token by token accounted for."""
    costs = load_costs(CHEAP, TINY)
    answers = group(synthetic(5, 1, length=40))
    done = replay(Simple(costs, 3), answers, 4)
    assert done["all"][0] == 40 * len(answers)
    seat = Seat(answers[0])
    chain = answers[0].model[0]
    assert Simple(costs, 3).play([seat]).accepted == [min(3, chain.matched)]


def test_shapes_are_named_by_file_type() -> None:
    """An unknown type is treated as the dearest one."""
    assert shape("IQ9") == shape("Q4_1")
