"""What measured costs and recorded rounds make of every plan: fixed lengths, break-even, `auto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspec.policy.choose import survivals
from pyspec.policy.features import table_bin
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.learned import Learned
from pyspec.policy.types import LOOKUP, Draft, Outcome, Place, Plan, SeqOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.measure.costs import Costs
    from pyspec.measure.rounds import Chain

PLAIN = "do not speculate"


def fixed_plans(
    rows: Sequence[float], step: float, acceptance: Sequence[float]
) -> dict[str, float]:
    """Goodput over plain decoding of every fixed length: (1 + E accepted) / time, design 4.2."""
    out = {PLAIN: 1.0}
    expected = 1.0
    for k, survival in enumerate(survivals(acceptance), 1):
        expected += survival
        if k + 1 < len(rows):
            out[f"fixed:{k}"] = expected * rows[1] / (rows[k + 1] + k * step)
    return out


def break_even(rows: Sequence[float], step: float, kmax: int) -> float:
    """The least constant acceptance with which some fixed length pays; above 1 if none does."""

    def best(a: float) -> float:
        plans = fixed_plans(rows, step, [a] * kmax)
        return max(gain for name, gain in plans.items() if name != PLAIN)

    if best(1.0) <= 1.0:
        return 2.0
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (low, middle) if best(middle) > 1.0 else (middle, high)
    return high


def simulate(costs: Costs, chains: Sequence[Chain], learned: Learned, *, companion: bool) -> float:
    """Speed-up of the default policy on the recorded rounds, by the measured times, no Python."""
    curve = costs.curve()
    warm = Learned.restore(learned.state())
    policy = GoodputPolicy(curve, warm, companion=companion)
    model = {(c.answer, c.t): c for c in chains if c.source != LOOKUP}
    lookup = {(c.answer, c.t): c for c in chains if c.source == LOOKUP}
    lengths = {c.answer: c.length for c in chains}
    rows, spent, tokens = curve.target.table(min(costs.target)), 0.0, 0
    for answer, length in lengths.items():
        t = 0
        while t < length:
            places = model.get((answer, t)), lookup.get((answer, t))
            ms, taken = _round(policy, costs, rows, *places)
            spent, tokens, t = spent + ms, tokens + taken + 1, t + taken + 1
    return tokens * rows[1] / spent if spent else 1.0


def _round(
    policy: GoodputPolicy,
    costs: Costs,
    rows: Sequence[float],
    model: Chain | None,
    lookup: Chain | None,
) -> tuple[float, int]:
    """One simulated round: its time and the tokens that were accepted."""
    room = max(len(c.ok) if c else 0 for c in (model, lookup))
    plan = policy.plan([Place(0, room)])
    out = Outcome((), 0.0, 0)
    chain: Chain | None = None
    draft = Draft(0, 0)
    if lookup is not None and lookup.match_length >= plan.lookup_min:
        chain, draft = lookup, lookup.draft(len(lookup.ok))
    elif model is not None and plan.lengths[0] > 0:
        n = _stopped(model, plan)
        chain, draft = model, model.draft(n)
        out.draft_steps, out.t_draft = n, n * costs.draft_step
        if not plan.use_companion:
            draft.s = draft.a = draft.pc = draft.agree = None
        elif model.s and costs.companion:
            out.companion_rows, out.t_companion = n, policy.curve.companion.table()[n]
    g = policy.choose([draft])[0] if draft.n else 0
    taken = min(g, chain.matched) if chain is not None else 0
    out.seqs, out.verify_rows, out.t_verify = [SeqOutcome(0, g, taken)], g + 1, rows[g + 1]
    policy.observe(out)
    return out.t_draft + out.t_companion + out.t_verify, taken


def _stopped(chain: Chain, plan: Plan) -> int:
    """Where the loop in C would stop drafting."""
    survival = 1.0
    limit = min(plan.lengths[0], len(chain.ok))
    for i in range(limit):
        if plan.table is not None:
            survival *= plan.table[table_bin(chain.p[i])]
            if survival < plan.floors[min(i, len(plan.floors) - 1)]:
                return i + 1
    return limit
