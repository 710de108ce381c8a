"""Figures of a pair: plans from costs and acceptance."""

from __future__ import annotations

import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from helpers.answers import counters
from measure import pair as measured
from measure.costs import MeasuredCosts, measure_costs
from measure.pair import (
    PLAIN,
    break_even,
    by_position,
    evaluate,
    fixed_plans,
    measure,
    say,
)
from measure.questions import Question
from measure.simulate import Answer, Chain, Player, fixed_speed
from measure.teaching import chains_of, teach
from rich.console import Console

from pyspec.engine.handle import Engine, Role
from pyspec.policy.acceptance import Acceptance
from pyspec.policy.goodput import GoodputPolicy

FLAT = [0.0] + [10.0] * 18
LINEAR = [10.0 * n for n in range(19)]


def chain(t: int, n: int, matched: int, p: float = 0.9) -> Chain:
    """A model chain whose draft always says `p`."""
    return Chain(t, n, matched, p=[p] * n)


def answer(*chains: Chain) -> list[Answer]:
    """One answer of 40 tokens with these chains of its draft."""
    return [Answer(40, 64, {chain.t: chain for chain in chains}, {})]


def costs(rows: list[float], step: float = 1.0) -> MeasuredCosts:
    return MeasuredCosts({128: {n: rows[n] for n in range(1, 18)}}, step, {}, 0.0)


def test_plans_by_hand() -> None:
    """Two tokens at 0.5: 1.75 expected for a row's time and two steps."""
    plans = fixed_plans(FLAT, 1.0, [0.5, 0.5])
    assert plans[PLAIN] == 1.0
    assert plans["fixed:2"] == pytest.approx(1.75 * 10.0 / 12.0)


def test_break_even_of_a_flat_curve_is_the_drafts_share() -> None:
    """One more token costs a tenth of a row, so acceptance must exceed a tenth."""
    assert break_even(FLAT, 1.0, 1) == pytest.approx(0.1, abs=1e-6)


def test_break_even_of_a_linear_curve_is_out_of_reach() -> None:
    """Where n rows cost n times one, even perfect drafts lose."""
    assert break_even(LINEAR, 1.0, 16) > 1.0


def test_acceptance_counts_only_what_was_observed() -> None:
    """After a miss nothing is known."""
    shares, counts = by_position([chain(1, 4, 2), chain(2, 4, 0)], 4)
    assert shares == [0.5, 1.0, 0.0]
    assert counts == [2, 1, 1]


def test_plans_are_played_on_the_recorded_rounds() -> None:
    """Right at first and wrong behind refusals, where rounds begin: what a length is worth is what it gains there."""
    chains = [chain(t, min(4, 40 - t), min(4, 40 - t) if t % 8 else 0) for t in range(1, 40)]
    texts = answer(*chains)
    found = evaluate(costs(LINEAR[:2] + [11.0] * 16), texts, 4, 1.0).figures
    for k in (1, 4):
        played = fixed_speed(texts, found.times, k) / fixed_speed(texts, found.times, 0)
        assert found.plans[f"fixed:{k}"] == pytest.approx(played)
    assert found.plans[found.best_plan] == max(found.plans.values())


def test_the_log_loss_is_the_mean_over_all_tokens() -> None:
    """300 tokens that are right half the time lose log 2 each, the last 100, surely wrong, hardly anything."""
    half = [chain(t, 1, t % 2, 0.5) for t in range(1, 301)]
    wrong = [chain(t, 1, 0, 0.01) for t in range(301, 401)]
    text = Answer(402, 8, {one.t: one for one in half + wrong}, {})
    found = evaluate(costs(FLAT), [text], 1, 1.0).figures
    assert found.log_loss_without_companion == pytest.approx(0.75 * math.log(2.0), abs=0.05)


def test_rows_of_the_draft_have_their_own_times() -> None:
    """What it reads at once is measured: a head reads accepted tokens again."""
    rows = dict.fromkeys(range(1, 18), 10.0)
    known = MeasuredCosts({128: rows}, 1.0, {}, 0.0, {2: 1.5, 4: 2.5, 8: 4.5})
    assert [known.times.draft(n) for n in (1, 2, 3, 8)] == pytest.approx([1.0, 1.5, 2.0, 4.5])


def test_a_losing_pair_is_told_so() -> None:
    """With linear costs nothing fixed pays, and the warning gives the reason."""
    found = evaluate(costs(LINEAR), answer(*(chain(t, 4, 1) for t in range(1, 40))), 4, 1.0).figures
    assert found.best_plan == PLAIN
    assert found.break_even_acceptance > 1.0
    assert "no fixed length pays" in found.warnings[0]


@pytest.mark.parametrize(
    ("auto", "loses"), [(0.9, True), (0.994, True), (0.996, False), (1.0, False)]
)
def test_a_pair_that_is_as_fast_loses_nothing(auto: float, loses: bool) -> None:
    """What would be said as 1.00 times is no loss."""
    found = evaluate(costs(LINEAR), answer(*(chain(t, 4, 1) for t in range(1, 40))), 4, 1.0).figures
    found.auto = auto
    assert any("drafts will be slower here" in each for each in measured._warnings(found)) is loses


def test_a_winning_pair_wins_under_auto_too() -> None:
    """Flat costs and a draft that is always right."""
    chains = [chain(t, min(8, 40 - t), min(8, 40 - t)) for t in range(1, 40)]
    found = evaluate(costs(FLAT), answer(*chains), 8, 1.0).figures
    assert found.plans[found.best_plan] > 3.0
    assert found.auto > 2.0
    assert not found.warnings


def test_auto_plays_answers_that_it_has_not_learned_from() -> None:
    """Of one answer alone it knows nothing, of two each teaches the other."""
    slow = costs([0.0, 10.0] + [14.0] * 17)
    right = answer(*(chain(t, 4, 4 if t % 5 else 0, 0.3) for t in range(1, 36)))
    wrong = answer(*(chain(t, 4, t % 3 == 0, 0.8) for t in range(1, 36)))

    def played(texts: list[Answer], learned: Acceptance) -> float:
        return Player(GoodputPolicy(slow.curve(), learned), slow.times).play(texts).ms

    def taught(texts: list[Answer]) -> Acceptance:
        learned = Acceptance()
        teach(learned, *chains_of(texts))
        return learned

    alone = evaluate(slow, right, 4, 1.0).figures.auto
    assert alone == pytest.approx(40 * 10.0 / played(right, Acceptance()))
    both = evaluate(slow, right + wrong, 4, 1.0).figures.auto
    ms = played(right, taught(wrong)) + played(wrong, taught(right))
    assert both == pytest.approx(2 * 40 * 10.0 / ms)


def test_a_depth_that_had_no_time_for_every_count_is_shown_as_far_as_it_is_known() -> None:
    """Two rows are measured at the deeper place, and four at the other."""
    rows = {n: 10.0 * n for n in range(1, 5)}
    known = MeasuredCosts({128: rows, 1024: {1: 11.0, 2: 22.0}}, 1.0, {}, 0.0)
    out = Console(file=StringIO(), width=80)
    say(evaluate(known, answer(chain(1, 2, 1)), 2, 1.0).figures, out)
    lines = out.file.getvalue().splitlines()
    assert [line.split() for line in lines[2:6]] == [
        ["1", "10.00", "11.00", "1.00"],
        ["2", "20.00", "22.00", "2.00"],
        ["3", "30.00", "3.00"],
        ["4", "40.00", "4.00"],
    ]


def test_costs_are_measured_for_every_row_count(
    open_llama: Callable[..., Any], tiny_target: Path, tiny_draft: Path, tiny_companion: Path
) -> None:
    """Positive times for 1..kmax + 1 rows, a step and companion rows."""
    llm = open_llama(tiny_target, draft=tiny_draft, companion=tiny_companion)
    found = measure_costs(llm, [5, 6, 7], kmax=3, depths=(16, 64))
    assert {depth: list(times) for depth, times in found.target_ms.items()} == {
        16: [1, 2, 3, 4],
        64: [1, 2, 3, 4],
    }
    assert all(t > 0 for times in found.target_ms.values() for t in times.values())
    assert found.draft_step_ms > 0
    assert found.companion_ms[1] > 0


def test_the_step_of_a_draft_that_reads_states_is_measured(
    open_llama: Callable[..., Any], tiny_target: Path, tiny_eagle3: Path
) -> None:
    """It drafts after the deeper measurements too, which leave no states of the text's beginning."""
    llm = open_llama(tiny_target, draft=tiny_eagle3)
    found = measure_costs(llm, [5, 6, 7], kmax=3, depths=(64, 192))
    assert found.draft_step_ms > 0.01
    assert list(found.draft_ms) == [2, 4, 8]
    assert min(found.draft_ms.values()) > 0.01


def test_a_step_of_the_draft_is_no_reading_of_the_text(
    open_llama: Callable[..., Any],
    tiny_target: Path,
    tiny_draft: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows for milliseconds, and no time for more than one look: of a large model the text takes longer than all steps."""
    llm = open_llama(tiny_target, draft=tiny_draft)

    def rows() -> int:
        return sum(counters(llm.assembly.engine).rows)

    monkeypatch.setattr("measure.costs.perf_counter", rows)
    found = measure_costs(llm, [5, 6, 7], kmax=3, depths=(128,), budget_s=0.0)
    assert found.draft_step_ms <= 2e3


@pytest.mark.parametrize("row_s", [0.02, 1.0])
def test_the_seconds_are_kept_within_twice(
    row_s: float, open_llama: Callable[..., Any], tiny_ascii: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that each row of the target moves on: also where one pass over all counts takes longer than there is."""
    llm = open_llama(tiny_ascii, draft=tiny_ascii)
    questions = [Question(i, "c", [f"abc{i}abc"]) for i in range(40)]
    clock = Clock(monkeypatch, row_s)
    found = measure(llm, questions, max_tokens=12, budget_s=50.0).figures
    assert clock.now < 100.0
    assert found.seconds == pytest.approx(clock.now)
    times = found.target_ms[min(found.target_ms)]
    assert times[2] == pytest.approx(2e3 * row_s)
    assert (len(times) == 17) == (row_s < 1.0)


class Clock:
    """Time in seconds that decodes take, and nothing else: a row of the target `row_s`, one of the draft a tenth."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, row_s: float) -> None:
        self.now = 0.0
        for module in ("measure.costs", "measure.pair", "pyspec.engine.timing"):
            monkeypatch.setattr(f"{module}.perf_counter", lambda: self.now)
        verify, prefill, draft = Engine.verify, Engine.prefill, Engine.draft

        def verify_(engine: Engine, work: Any) -> None:
            self.now += row_s * sum(max(0, n) + max(0, drafted) + 1 for _, n, drafted in work)
            verify(engine, work)

        def prefill_(engine: Engine, role: Role, seq: int, upto: int, chunk: int) -> int:
            self.now += 0.02 * row_s * min(chunk, upto)
            return prefill(engine, role, seq, upto, chunk)

        def draft_(engine: Engine, seqs: Any, limits: Any, keep_rows: bool = False) -> None:
            self.now += 0.1 * row_s * max(limits)
            draft(engine, seqs, limits, keep_rows)

        monkeypatch.setattr(Engine, "verify", verify_)
        monkeypatch.setattr(Engine, "prefill", prefill_)
        monkeypatch.setattr(Engine, "draft", draft_)


def test_a_pair_is_measured(open_llama: Callable[..., Any], tiny_ascii: Path) -> None:
    llm = open_llama(tiny_ascii, draft=tiny_ascii)
    questions = [Question(1, "c", ["abcabc"])]
    found = measure(llm, questions, kmax=3, max_tokens=12, budget_s=9.0)
    assert found.figures.acceptance
    assert found.figures.log_loss_with_companion is None
