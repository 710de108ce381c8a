"""The profile of a pair of models on this machine.

What a decode costs, how often drafts are accepted, and which plan that makes the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from pyspec.llama import SpeculativeLlama
from pyspec.measure.costs import (
    PLAIN,
    MeasuredCosts,
    break_even,
    fixed_plans,
    measure_costs,
    simulate,
)
from pyspec.measure.questions import Question
from pyspec.measure.report import draw_costs
from pyspec.measure.rounds import Chain, record_answer
from pyspec.policy.acceptance import Learned
from pyspec.policy.cost import CostCurve
from pyspec.policy.profile import Profile, save_profile
from pyspec.policy.stopping import forecast, learn
from pyspec.policy.types import LOOKUP, SeqOutcome
from pyspec.profiles import profile_key, profiles_dir
from pyspec.template import ChatTemplate, Message


@dataclass
class Bin:
    """Drafted tokens of one range of the draft's own probability, after accepted ones only."""

    low: float
    high: float
    count: int = 0
    said: float = 0.0
    accepted: int = 0


@dataclass
class Measured:
    """Everything `pyspec profile` says. Times are ms, losses nats a drafted token.

    acceptance[i]: of the drafted token i where all before it were accepted; plans: goodput of each
    plan over plain decoding; break_even: the constant acceptance from which on drafting pays;
    auto: what the default policy would gain on the recorded rounds.
    """

    costs: MeasuredCosts
    curve: CostCurve
    learned: Learned
    chains: list[Chain]
    acceptance: list[float]
    counts: list[int]
    bins: list[Bin]
    plans: dict[str, float]
    best_plan: str
    break_even: float
    auto: float
    loss_without: float
    loss_with: float | None
    lookup_share: float
    seconds: float
    warnings: list[str] = field(default_factory=list)


def measure(
    llm: SpeculativeLlama,
    questions: Sequence[Question],
    *,
    kmax: int = 16,
    max_tokens: int = 64,
    budget_s: float = 50.0,
    report: Callable[[str, float], None] = lambda _what, _share: None,
) -> Measured:
    """Measure costs, then record answers to `questions` until `budget_s` seconds have passed."""
    start = perf_counter()
    template = ChatTemplate.of(llm)
    prompts = [template.prompt([Message(role="user", content=q.turns[0])]) for q in questions]
    text = [token for prompt in prompts for token in prompt]
    costs = measure_costs(
        llm, text, kmax=kmax, budget_s=0.35 * budget_s,
        report=lambda share: report("cost of decodes", 0.35 * share),
    )  # fmt: skip
    chains: list[Chain] = []
    for question, prompt in zip(questions, prompts, strict=True):
        passed = (perf_counter() - start) / budget_s
        report(f"drafts: {question.category}", min(1.0, passed))
        if passed >= 1.0:
            break
        chains += record_answer(
            llm, prompt, name=str(question.question_id), category=question.category,
            max_tokens=max_tokens, kmax=kmax, until=start + budget_s,
        )  # fmt: skip
    return evaluate(costs, chains, kmax, perf_counter() - start)


def evaluate(costs: MeasuredCosts, chains: list[Chain], kmax: int, seconds: float) -> Measured:
    """From measured times and recorded chains to the figures; without any model."""
    curve, learned = costs.curve(), Learned()
    model = [chain for chain in chains if chain.source != LOOKUP]
    acceptance, counts = by_position(model, kmax)
    teach(learned, model, [c for c in chains if c.source == LOOKUP])
    rows, step = curve.target.table(min(costs.target)), costs.draft_step
    plans = fixed_plans(rows, step, acceptance)
    companion = any(chain.s for chain in model)
    out = Measured(
        costs, curve, learned, chains, acceptance, counts, calibration(model), plans,
        max(plans, key=lambda name: plans[name]), break_even(rows, step, kmax),
        simulate(costs, chains, learned, companion=companion),
        learned.loss_without if companion else learned.loss,
        learned.loss_with if companion else None,
        _lookup_share(chains), seconds,
    )  # fmt: skip
    out.warnings = _warnings(out)
    return out


def by_position(chains: Sequence[Chain], kmax: int) -> tuple[list[float], list[int]]:
    """Conditional acceptance and number of observations by position of the drafted token."""
    seen, hits = [0] * kmax, [0] * kmax
    for chain in chains:
        for i in range(chain.seen):
            seen[i] += 1
            hits[i] += i < chain.matched
    known = [n for n in seen if n]
    return [hits[i] / seen[i] for i in range(len(known))], known


def calibration(chains: Sequence[Chain], bins: int = 10) -> list[Bin]:
    """What the draft's probability says against what the target accepts, in equal ranges."""
    out = [Bin(k / bins, (k + 1) / bins) for k in range(bins)]
    for chain in chains:
        for i, p in enumerate(chain.p[: chain.seen]):
            cell = out[min(int(p * bins), bins - 1)]
            cell.count, cell.said = cell.count + 1, cell.said + p
            cell.accepted += i < chain.matched
    return out


def teach(learned: Learned, model: Sequence[Chain], lookup: Sequence[Chain]) -> None:
    """Let the estimators see every recorded chain as a round that verified all of it."""
    for chain in model:
        seen = forecast(learned, chain.draft(chain.n))
        learn(learned, seen, SeqOutcome(0, chain.n, chain.matched))
    for chain in lookup:
        hits = [i < chain.matched for i in range(chain.seen)]
        learned.lookup.update(chain.match_length, hits, chain.choices)


def _lookup_share(chains: Sequence[Chain]) -> float:
    positions = sum({c.answer: c.length for c in chains}.values())
    right = sum(1 for c in chains if c.source == LOOKUP and c.matched)
    return right / positions if positions else 0.0


def _warnings(m: Measured) -> list[str]:
    out = []
    alpha = m.acceptance[0] if m.acceptance else 0.0
    if m.acceptance and m.best_plan == PLAIN:
        out.append(
            f"no fixed length pays: the first drafted token is accepted {100 * alpha:.0f} % of the "
            f"time and the break-even is {_percent(m.break_even)}"
        )
    if m.acceptance and m.auto < 1.0:
        rows = m.curve.target.table(min(m.costs.target))
        out.append(
            f"this pair will lose ({m.auto:.2f} times plain): two rows cost "
            f"{rows[2] / rows[1]:.2f} times one and a draft step "
            f"{100 * m.costs.draft_step / rows[1]:.0f} % of one; use --draft lookup or none"
        )
    if m.loss_with is not None and m.loss_with > m.loss_without:
        out.append("the companion misleads here; --companion none costs nothing")
    if m.costs.spread > 0.3:
        out.append(
            f"times varied by {100 * m.costs.spread:.0f} %: something else is using this machine"
        )
    return out


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value <= 1.0 else "out of reach"


def store(llm: SpeculativeLlama, m: Measured) -> Path:
    """Write the profile where `load_profile` finds it; returns its path. Raises ProfileError."""
    profile = Profile(
        key=profile_key(llm, llm.assembly.sides),
        curve=m.curve.state(),
        learned=m.learned.state(),
        acceptance=m.acceptance,
        best_plan=m.best_plan,
        break_even=m.break_even,
        loss_without_companion=m.loss_without,
        loss_with_companion=m.loss_with if m.loss_with is not None else m.loss_without,
    )
    return save_profile(profile, profiles_dir())


# -- as text -----------------------------------------------------------------------------------------------------------


def summary(m: Measured) -> dict[str, Any]:
    """The figures as plain values; times in ms."""
    return {
        "target_ms": m.costs.target,
        "draft_step_ms": m.costs.draft_step,
        "companion_ms": m.costs.companion,
        "spread": m.costs.spread,
        "acceptance": m.acceptance,
        "observations": m.counts,
        "calibration": [
            {"said": b.said / b.count, "accepted": b.accepted / b.count, "count": b.count}
            for b in m.bins
            if b.count
        ],
        "log_loss_without_companion": m.loss_without,
        "log_loss_with_companion": m.loss_with,
        "lookup_share": m.lookup_share,
        "break_even_acceptance": m.break_even,
        "plans": m.plans,
        "best_plan": m.best_plan,
        "auto": m.auto,
        "seconds": m.seconds,
        "warnings": m.warnings,
    }


def say(m: Measured, out: Console) -> None:
    """Print the tables."""
    out.print(_cost_table(m))
    if m.acceptance:
        out.print(_position_table(m))
        out.print(_calibration_table(m))
    for line in _lines(m):
        out.print(line)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _cost_table(m: Measured) -> Table:
    depths = list(m.costs.target)
    heads = [f"target, {depth} deep" for depth in depths]
    table = _table("ms of a decode", "rows", *heads, "times one row", "companion")
    first = m.costs.target[depths[0]]
    for n, ms in first.items():
        companion = m.costs.companion.get(n)
        table.add_row(
            str(n),
            *(f"{m.costs.target[depth][n]:.2f}" for depth in depths),
            f"{ms / first[1]:.2f}",
            "" if companion is None else f"{companion:.2f}",
        )
    return table


def _position_table(m: Measured) -> Table:
    table = _table("drafted tokens, strict rule", "position", "accepted", "seen", "plan", "gain")
    for i, (share, count) in enumerate(zip(m.acceptance, m.counts, strict=True), 1):
        gain = m.plans.get(f"fixed:{i}")
        shown = "" if gain is None else f"{gain:.2f}"
        table.add_row(str(i), f"{100 * share:.0f} %", str(count), f"fixed:{i}", shown)
    return table


def _calibration_table(m: Measured) -> Table:
    table = _table("calibration of the draft", "it says", "accepted", "tokens")
    for b in m.bins:
        if b.count:
            said, accepted = b.said / b.count, b.accepted / b.count
            table.add_row(f"{100 * said:.0f} %", f"{100 * accepted:.0f} %", str(b.count))
    return table


def _lines(m: Measured) -> list[str]:
    out = []
    if m.acceptance:
        row = m.curve.target.table(min(m.costs.target))[1]
        out.append(
            f"the draft: {m.costs.draft_step:.2f} ms a step, {100 * m.costs.draft_step / row:.0f} % of a row of the "
            f"target; its first token is accepted {100 * m.acceptance[0]:.0f} % of the time"
        )
        out.append(f"break-even acceptance: {_percent(m.break_even)}")
        if m.loss_with is None:
            out.append(f"log-loss: {m.loss_without:.3f} nats a token, without a companion")
        else:
            worth = m.loss_without - m.loss_with
            losses = f"{m.loss_without:.3f} nats a token, {m.loss_with:.3f} with the companion"
            out.append(f"log-loss: {losses} ({worth:+.3f})")
    out.append(f"prompt lookup right at {100 * m.lookup_share:.0f} % of positions")
    best = m.best_plan
    out.append(f"best fixed plan: {best} ({m.plans[best]:.2f} times plain)")
    out.append(f"length auto on these rounds: {m.auto:.2f} times plain, without Python's time")
    out.append(f"measured in {m.seconds:.0f} s")
    return out


def draw(m: Measured, path: Path) -> None:
    """Save the cost curve as a plot. Raises OptionError without matplotlib."""
    curves = {
        f"target, {depth} deep": [0.0, *times.values()] for depth, times in m.costs.target.items()
    }
    if m.costs.draft_step:
        last = len(next(iter(curves.values())))
        curves["draft, tokens one by one"] = [k * m.costs.draft_step for k in range(last)]
    figure = draw_costs(curves)
    if figure is not None:
        figure.savefig(path)
