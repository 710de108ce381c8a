"""The profile of a pair of models on this machine.

It measures what a decode costs and how often drafts are accepted, and finds the best plan for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from rich.console import Console

from pyspec.engine.profiles import (
    prior_learned,
)  # fmt: skip
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.lookup.drafters import LookupDrafter
from pyspec.policy.acceptance import Acceptance
from pyspec.policy.simple import LengthPolicy
from pyspec.policy.stopping import survivals
from pyspec.policy.types import Draft, Place, Plan
from pyspec.sampling.chain import Sampling
from pyspec.sampling.noise import derive_seed
from pyspec.screen.tables import TextTable, print_table
from pyspec.screen.words import safe
from pyspec.store.files import file_sha256
from pyspec.text.template import ChatTemplate
from pyspec.text.tokens import common_prefix

from .costs import MeasuredCosts, measure_costs
from .pictures import draw_costs, save_figure
from .questions import Question, Report
from .simulate import Answer, Chain, fixed_speed
from .teaching import chains_of, gain_of_auto, teach


class PairFigures(MeasuredCosts, kw_only=True):
    """Everything that `bench/pair.py` reports.

    acceptance[i]: acceptance of drafted token i where all before it were accepted, from observations[i] rounds; log-losses: nats
    per drafted token, each predicted before it was learned from; plans: speed of each plan over plain decoding on the recorded
    rounds; break_even_acceptance: the constant acceptance above which drafting pays; auto: gain of the default policy on each
    half of the rounds, having learned from the other.
    """

    acceptance: list[float]
    observations: list[int]
    log_loss_without_companion: float
    log_loss_with_companion: float | None
    lookup_share: float
    break_even_acceptance: float
    plans: dict[str, float]
    best_plan: str
    auto: float
    seconds: float
    warnings: list[str] = msgspec.field(default_factory=list)


@dataclass
class Measurement:
    """The figures, what the estimators learned, and the recorded rounds."""

    figures: PairFigures
    learned: Acceptance
    answers: list[Answer]


def measure(
    llm: SpeculativeLlama,
    questions: Sequence[Question],
    *,
    kmax: int = 16,
    max_tokens: int = 64,
    budget_s: float = 50.0,
    temperature: float = 0.0,
    report: Report = lambda *_: None,
) -> Measurement:
    """Measure costs, then record answers to `questions` until `budget_s` seconds have passed."""
    start = perf_counter()
    template = ChatTemplate.of(llm)
    prompts = [question.prompt(template) for question in questions]
    text = [token for prompt in prompts for token in prompt]
    costs = measure_costs(
        llm, text, kmax=kmax, budget_s=0.35 * budget_s,
        report=lambda share: report(int(35 * share), 100, "cost of decodes"),
    )  # fmt: skip
    answers: list[Answer] = []
    for question, prompt in zip(questions, prompts, strict=True):
        passed = (perf_counter() - start) / budget_s
        report(min(100, int(100 * passed)), 100, f"drafts: {question.category}")
        if passed >= 1.0:
            break
        until = start + budget_s
        drawn = Sampling(temperature=temperature, seed=derive_seed(1, 0, *prompt))
        answer = record_answer(llm, prompt, drawn, max_tokens=max_tokens, kmax=kmax, until=until)
        answers.append(answer)
    found = evaluate(costs, answers, kmax, perf_counter() - start)
    known = prior_learned(llm.assembly.sides)
    found.learned.join(known, coupled=temperature > 0.0)
    return found


def evaluate(costs: MeasuredCosts, answers: list[Answer], kmax: int, seconds: float) -> Measurement:
    """Compute the figures from measured times and recorded answers; needs no model."""
    model, lookup = chains_of(answers)
    learned = Acceptance()
    without, with_companion = teach(learned, model, lookup)
    acceptance, observations = by_position(model, kmax)
    plans = played_plans(costs, answers, kmax if model else 0)
    companion = any(chain.s for chain in model)
    positions = sum(answer.length for answer in answers)
    figures = PairFigures(
        **msgspec.structs.asdict(costs),
        acceptance=acceptance,
        observations=observations,
        log_loss_without_companion=without,
        log_loss_with_companion=with_companion if companion else None,
        lookup_share=sum(chain.matched > 0 for chain in lookup) / max(1, positions),
        break_even_acceptance=break_even(costs.rows, costs.draft_step_ms, kmax),
        plans=plans,
        best_plan=max(plans, key=lambda name: plans[name]),
        auto=gain_of_auto(costs, answers, companion=companion),
        seconds=seconds,
    )
    figures.warnings = _warnings(figures)
    return Measurement(figures, learned, answers)


def by_position(chains: Sequence[Chain], kmax: int) -> tuple[list[float], list[int]]:
    """Conditional acceptance and number of observations by position of the drafted token."""
    seen = [sum(chain.seen > i for chain in chains) for i in range(kmax)]
    hits = [sum(chain.matched > i for chain in chains) for i in range(kmax)]
    return [hit / n for hit, n in zip(hits, seen) if n], [n for n in seen if n]


def _warnings(m: PairFigures) -> list[str]:
    out = []
    if m.acceptance and m.best_plan == PLAIN:
        out.append(
            f"no fixed length pays: the first drafted token is accepted {100 * m.acceptance[0]:.0f} % of the "
            f"time and the break-even is {_percent(m.break_even_acceptance)}"
        )
    if m.acceptance and round(m.auto, 2) < 1.0:  # rounded as it is printed
        out.append(
            f"drafts will be slower here ({m.auto:.2f} times): checking 2 tokens costs "
            f"{m.rows[2] / m.rows[1]:.2f} times one, drafting one {100 * m.draft_step_ms / m.rows[1]:.0f} %"
        )
    with_it = m.log_loss_with_companion
    if with_it is not None and with_it > m.log_loss_without_companion:
        out.append("the companion's estimates are worse than none; use --companion none")
    if m.spread > 0.3:
        out.append(f"times varied by {100 * m.spread:.0f} %: something else is using this machine")
    return out


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value <= 1.0 else "out of reach"


# -- recording ---------------------------------------------------------------------------------------------------------


class _Recording(LengthPolicy):
    """Drafts kmax tokens in each round, keeps them by sequence length, and verifies none, so that every position has a round."""

    def __init__(self, engine: Any, kmax: int) -> None:
        super().__init__()
        self._engine, self._kmax = engine, kmax
        self.drafts: dict[int, tuple[list[int], Draft]] = {}
        self._depth = 0

    def plan(self, places: Sequence[Place]) -> Plan:
        """Plan the longest possible draft, scored by the companion."""
        (place,) = places
        self._depth = place.depth
        return Plan([min(self._kmax, place.room)], use_companion=True)

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Keep the draft; verify none of it."""
        (draft,) = drafts
        view = self._engine.drafted(0)
        self.drafts[self._depth] = [int(view.token[i]) for i in range(draft.n)], draft
        return [0]


_GREEDY = Sampling(temperature=0.0)


def record_answer(
    llm: SpeculativeLlama, prompt: Sequence[int], sampling: Sampling = _GREEDY, *,
    max_tokens: int = 128, kmax: int = 16, until: float = inf,
) -> Answer:  # fmt: skip
    """Record one answer with what would have been drafted; it ends at `until` on `perf_counter`.

    Chains near the end are shorter, as in the loop: the token after the draft must fit, too.
    """
    recording = _Recording(llm.assembly.engine, kmax)
    tokens: list[int] = []
    steps = llm.steps(prompt, sampling, max_tokens=max_tokens, policy=recording, drafting="model")
    with closing(steps):
        for step in steps:
            tokens += [token.id for token in step.tokens]
            if perf_counter() > until:
                break
    window = llm.assembly.engine.window
    file = next((file_sha256(side.path) for side in llm.assembly.sides), "")
    answer = Answer(len(tokens), len(prompt), {}, {}, window, asked=max_tokens, draft_file=file)
    index = LookupDrafter()
    for t in range(len(tokens)):
        found = index.propose(0, [*prompt, *tokens[:t]], min(kmax, len(tokens) - t - 1))
        if kept := recording.drafts.get(len(prompt) + t):
            _keep(answer.models, tokens, t, *kept)
            if t in answer.models:
                answer.models[t].shared = common_prefix(kept[0], found.tokens)
        draft = Draft(0, len(found.tokens), match_length=found.match_length, choices=found.choices)
        _keep(answer.lookups, tokens, t, list(found.tokens), draft)
    return answer


def _keep(
    chains: dict[int, Chain], tokens: Sequence[int], t: int, drafted: list[int], draft: Draft
) -> None:
    """Add the chain of one position, cut where the answer ends: what came after is unknown."""
    n = min(len(drafted), len(tokens) - t)
    if n < 1:
        return
    right = common_prefix(drafted[:n], tokens[t:])
    chain = Chain(t, n, right, draft.match_length, draft.choices, draft.p[:n])
    if draft.s and draft.a and draft.pc and draft.agree:
        chain.s, chain.a = draft.s[:n], draft.a[:n]
        chain.pc, chain.agree = draft.pc[:n], [bool(one) for one in draft.agree[:n]]
    chains[t] = chain


# -- plans -------------------------------------------------------------------------------------------------------------


PLAIN = "do not speculate"


def played_plans(costs: MeasuredCosts, answers: Sequence[Answer], kmax: int) -> dict[str, float]:
    """Speed of every fixed length over plain decoding on the recorded rounds; each round begins where the last one ended."""
    texts = [answer for answer in answers if answer.length > 1]
    most = min(kmax, len(costs.rows) - 2) if texts else 0
    speeds = [fixed_speed(texts, costs.times, k) for k in range(most + 1)] if texts else [1.0]
    return {f"fixed:{k}" if k else PLAIN: speed / speeds[0] for k, speed in enumerate(speeds)}


def fixed_plans(
    rows: Sequence[float], step: float, acceptance: Sequence[float]
) -> dict[str, float]:
    """Goodput of every fixed length over plain decoding, with this acceptance by position: (1 + E accepted) / time."""
    expected = accumulate(survivals(acceptance), initial=1.0)
    times = [time + k * step for k, time in enumerate(rows[1:])]
    gains = [tokens * rows[1] / time for tokens, time in zip(expected, times)]
    return {f"fixed:{k}" if k else PLAIN: gain for k, gain in enumerate(gains)}


def break_even(rows: Sequence[float], step: float, kmax: int) -> float:
    """The smallest constant acceptance at which some fixed length pays; above 1 if none does."""

    def pays(a: float) -> bool:
        return max(fixed_plans(rows, step, [a] * kmax).values()) > 1.0

    low, high = 0.0, 2.0
    for _ in range(31):
        middle = (low + high) / 2.0
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


# -- as text -----------------------------------------------------------------------------------------------------------


def say(m: PairFigures, out: Console) -> None:
    first, *_ = m.target_ms.values()
    more = {n: ms / first[1] for n, ms in first.items()}
    columns = [*m.target_ms.values(), more, m.companion_ms]
    heads = [
        "rows",
        *(f"target, {depth} deep" for depth in m.target_ms),
        "times one row",
        "companion",
    ]
    times = [[str(n), *(f"{c[n]:.2f}" if n in c else "" for c in columns)] for n in first]
    _print("ms of a decode", TextTable(heads, times), out)
    if m.acceptance:
        heads = ["position", "accepted", "seen", "plan", "gain"]
        drafted = [
            [str(i), f"{100 * share:.0f} %", str(count), plan, f"{m.plans[plan]:.2f}"]
            for i, (share, count) in enumerate(zip(m.acceptance, m.observations, strict=True), 1)
            for plan in [f"fixed:{i}"]
        ]
        _print("drafted tokens, strict rule", TextTable(heads, drafted), out)
    for line in _lines(m):
        out.print(safe(line))


def _print(title: str, table: TextTable, out: Console) -> None:
    out.print(title, style="italic")
    print_table(table, out, markdown=False)


def _lines(m: PairFigures) -> list[str]:
    out = []
    if m.acceptance:
        out.append(
            f"the draft: {m.draft_step_ms:.2f} ms a step, {100 * m.draft_step_ms / m.rows[1]:.0f} % of a row of the "
            f"target; its first token is accepted {100 * m.acceptance[0]:.0f} % of the time"
        )
        out.append(f"break-even acceptance: {_percent(m.break_even_acceptance)}")
        without, with_it = m.log_loss_without_companion, m.log_loss_with_companion
        companion = ", without a companion"
        if with_it is not None:
            companion = f", {with_it:.3f} with the companion ({without - with_it:+.3f})"
        out.append(f"log-loss: {without:.3f} nats a token{companion}")
    out.append(f"prompt lookup right at {100 * m.lookup_share:.0f} % of positions")
    out.append(f"best fixed plan: {m.best_plan} ({m.plans[m.best_plan]:.2f} times plain)")
    out.append(
        f"length auto on these rounds, learned from the others: {m.auto:.2f} times plain, without Python's time"
    )
    out.append(f"measured in {m.seconds:.0f} s")
    return out


def draw(m: PairFigures, path: Path) -> None:
    curves = {
        f"target, {depth} deep": [0.0, *times.values()] for depth, times in m.target_ms.items()
    }
    if m.draft_step_ms:
        last = len(next(iter(curves.values())))
        curves["draft, tokens one by one"] = [k * m.draft_step_ms for k in range(last)]
    save_figure(draw_costs(curves), path)
