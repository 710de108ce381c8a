"""Times of single decodes on this machine, and what they and recorded rounds make of every plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import msgspec

from pyspec.engine.handle import Engine, Role
from pyspec.engine.session import PREFILL_CHUNK
from pyspec.llama import SpeculativeLlama
from pyspec.measure import simulate as simulator
from pyspec.measure.rounds import Answer
from pyspec.measure.simulate import Player, Times, fixed_speed
from pyspec.policy.acceptance import Learned
from pyspec.policy.cost import N_MAX, CostCurve, expand
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.stopping import survivals


class MeasuredCosts(msgspec.Struct):
    """Medians. target_ms: by depth, then by rows; companion_ms: by rows; draft_step_ms: one token.

    spread: the widest (upper quartile - lower quartile) / median of the target's times.
    """

    target_ms: dict[int, dict[int, float]]
    draft_step_ms: float
    companion_ms: dict[int, float]
    spread: float

    @property
    def rows(self) -> list[float]:
        """The target's times by rows at the least depth, from 0 rows on."""
        return expand(self.target_ms[min(self.target_ms)])

    def curve(self) -> CostCurve:
        """As policies take it: measured points, and lines between them.

        One step of several sequences is not measured; it is given the shape of the target's rows.
        """
        tables = {depth: expand(times) for depth, times in self.target_ms.items()}
        one = self.rows[1]
        shape = [t / one for t in self.rows]
        draft = self.draft_step_ms or one
        companion = expand(self.companion_ms) if self.companion_ms else [t * draft for t in shape]
        return CostCurve.from_tables(tables, [t * draft for t in shape], companion)


def measure_costs(
    llm: SpeculativeLlama,
    text: Sequence[int],
    *,
    kmax: int = 16,
    depths: Sequence[int] = (128, 1024),
    budget_s: float = 20.0,
    report: Callable[[float], None] = lambda _share: None,
) -> MeasuredCosts:
    """Measure within about `budget_s` seconds; `text` is repeated as far as the depths need.

    Row counts take turns, so that a slow moment of the machine does not fall on one of them.
    """
    assembly = llm.assembly
    engine: Engine = assembly.session.engine
    full = assembly.session.loop
    engine.cancel(raised=False)
    depths = [d for d in depths if d + kmax + 1 < llm.n_ctx()] or [max(1, llm.n_ctx() // 2)]
    long = (list(text) * (1 + (max(depths) + N_MAX) // max(1, len(text))))[: max(depths) + N_MAX]
    rows = range(1, min(kmax, full.longest) + 2)
    seen: dict[int, dict[int, list[float]]] = {}
    start = perf_counter()
    ready(engine, long, depths[0])
    reading = (perf_counter() - start) / depths[0]
    for i, depth in enumerate(depths):
        left = budget_s - (perf_counter() - start)
        if i and reading * depth > left:
            break  # reading so far would take more than all measuring may
        seen[depth] = _target(engine, long, depth, rows, 0.8 * budget_s / len(depths))
        report(0.8 * (i + 1) / len(depths))
    step = 0.0
    companion: dict[int, float] = {}
    if full.draft_model:
        step, companion = _side(engine, long, depths[0], kmax, full.companion, 0.2 * budget_s)
    report(1.0)
    engine.set_tokens(0, [])
    llm.reset()
    medians = {d: {n: median(times) for n, times in s.items()} for d, s in seen.items()}
    return MeasuredCosts(medians, step, companion, _spread(seen))


def _spread(seen: dict[int, dict[int, list[float]]]) -> float:
    widest = 0.0
    for times in (sorted(t) for by_rows in seen.values() for t in by_rows.values()):
        quarter = len(times) // 4
        widest = max(widest, (times[-1 - quarter] - times[quarter]) / median(times))
    return widest


def ready(engine: Engine, text: Sequence[int], depth: int, chunk: int = PREFILL_CHUNK) -> None:
    """Make the first `depth` tokens the text and read all but the last of them."""
    engine.set_tokens(0, text[:depth])
    while engine.held(Role.TARGET, 0) < depth - 1:
        engine.prefill(Role.TARGET, 0, depth - 1, chunk)


def verify_ms(engine: Engine, text: Sequence[int], depth: int, n: int) -> float:
    """Milliseconds of one verify of n rows behind the first `depth` tokens of a text."""
    ready(engine, text, depth)
    engine.put_draft(0, text[depth : depth + n - 1])
    start = perf_counter()
    engine.verify([(0, 0, n - 1)])
    return 1e3 * (perf_counter() - start)


def _target(
    engine: Engine, text: Sequence[int], depth: int, rows: Sequence[int], budget_s: float
) -> dict[int, list[float]]:
    """Times by rows, ms. The first pass warms caches and builds graphs: it counts only where the budget has no second one for."""
    found: dict[int, list[float]] = {n: [] for n in rows}
    end = perf_counter() + budget_s
    for _ in range(41):
        for n in rows:
            if perf_counter() > end and found[2 if 2 in found else 1]:
                return _counted(found)
            found[n].append(verify_ms(engine, text, depth, n))
    return _counted(found)


def _counted(found: dict[int, list[float]]) -> dict[int, list[float]]:
    return {n: times[1:] or times for n, times in found.items() if times}


def _side(
    engine: Engine, text: Sequence[int], depth: int, kmax: int, companion: bool, budget_s: float
) -> tuple[float, dict[int, float]]:
    steps: list[float] = []
    scores: dict[int, list[float]] = {n: [] for n in sorted({1, 2, 4, 8, kmax})}
    engine.set_stop([0.0], None)
    # read anew: a draft that reads states needs the states of what was read last
    engine.set_tokens(0, [])
    end = perf_counter() + budget_s
    for again in range(31):
        for n, times in scores.items():
            if steps and perf_counter() > end:
                break
            # from other places each time: at some the draft ends the text and goes no further
            ready(engine, text, depth - again % 8)
            engine.put_draft(0, [])
            start = perf_counter()
            engine.draft([0], [n], keep_rows=companion)
            middle = perf_counter()
            drafted = engine.drafted(0).n
            if companion and drafted:
                engine.score([0])
            # a draft that ended the text took one step more than it has tokens
            steps.append(1e3 * (middle - start) / min(n, drafted + 1))
            if drafted == n:
                times.append(1e3 * (perf_counter() - middle))
        if perf_counter() > end:
            break
        if again == 0:  # it warmed caches
            steps.clear()
            for times in scores.values():
                times.clear()
    rows = {n: median(times) for n, times in scores.items() if times} if companion else {}
    return (median(steps) if steps else 0.0), rows


# -- plans -------------------------------------------------------------------------------------------------------------


PLAIN = "do not speculate"


def fixed_plans(
    rows: Sequence[float], step: float, acceptance: Sequence[float]
) -> dict[str, float]:
    """Goodput over plain decoding of every fixed length: (1 + E accepted) / time."""
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


def simulate(
    costs: MeasuredCosts, answers: Sequence[Answer], learned: Learned, *, companion: bool
) -> float:
    """Speed-up of the default policy on recorded answers, by the measured times; no Python in them."""
    if not any(answer.models or answer.lookups for answer in answers):
        return 1.0
    curve = costs.curve()
    tables = (
        curve.target.table(min(costs.target_ms)),
        curve.draft.table(),
        curve.companion.table(),
    )
    times = simulator.Costs(*(Times(dict(enumerate(table[1:], 1))) for table in tables))
    policy = GoodputPolicy(curve, Learned.restore(learned.state()), companion=companion)
    return Player(policy, times).play(answers).speed / fixed_speed(answers, times, 0)
