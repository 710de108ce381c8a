"""Measures what decodes of a pair cost on this machine, by number of rows, with the target's own engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import chain, product
from statistics import median
from time import perf_counter

import msgspec
import numpy as np

from pyspec.engine.handle import Engine
from pyspec.engine.timing import ready, verify_ms
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.policy.cost import CostCurve
from pyspec.policy.shapes import N_MAX, expand

from .simulate import Costs, Times

log = logging.getLogger("pyspec")


class MeasuredCosts(msgspec.Struct):
    """Median times. target_ms: by depth, then by rows; companion_ms: by rows; draft_step_ms: one token.

    spread: the largest (upper quartile - lower quartile) / median of the target's times. draft_ms: the draft reading this many
    rows at once; one row is a step.
    """

    target_ms: dict[int, dict[int, float]]
    draft_step_ms: float
    companion_ms: dict[int, float]
    spread: float
    draft_ms: dict[int, float] = {}

    @property
    def rows(self) -> list[float]:
        """The target's times by rows at the smallest depth, from 0 rows on."""
        return expand(self.target_ms[min(self.target_ms)])

    @property
    def times(self) -> Costs:
        """Times at the smallest depth. If no rows of the draft were measured, they get the shape of the target's."""
        target = self.target_ms[min(self.target_ms)]
        draft = Times(target, (self.draft_step_ms or target[1]) / target[1])
        if len(self.draft_ms) > 1:
            draft = Times({1: self.draft_step_ms} | self.draft_ms)
        return Costs(Times(target), draft, Times(self.companion_ms) if self.companion_ms else draft)

    def curve(self) -> CostCurve:
        """The curve for policies: measured points, linear between them."""
        return self.times.curve({depth: expand(times) for depth, times in self.target_ms.items()})


def measure_costs(
    llm: SpeculativeLlama,
    text: Sequence[int],
    *,
    kmax: int = 16,
    depths: Sequence[int] = (128, 1024),
    budget_s: float = 20.0,
    report: Callable[[float], None] = lambda _share: None,
) -> MeasuredCosts:
    """Measure for about `budget_s` seconds; `text` is repeated as often as the depths need.

    Row counts take turns, so a slow moment of the machine does not fall on one of them.
    """
    assembly = llm.assembly
    engine: Engine = assembly.engine
    full = assembly.loop
    engine.cancel(raised=False)
    depths = [d for d in depths if d + kmax + 1 < llm.n_ctx()] or [max(1, llm.n_ctx() // 2)]
    long = (list(text) * (1 + (max(depths) + N_MAX) // max(1, len(text))))[: max(depths) + N_MAX]
    longest = max(1, min(kmax, full.longest, llm.n_batch - 1))
    rows = range(1, longest + 2)
    seen: dict[int, dict[int, list[float]]] = {}
    start = perf_counter()
    ready(engine, long, depths[0])
    reading = (perf_counter() - start) / depths[0]
    for i, depth in enumerate(depths):
        left = budget_s - (perf_counter() - start)
        if i and reading * depth > left:
            break  # reading to this depth would take longer than all measuring may
        seen[depth] = _target(engine, long, depth, rows, 0.8 * budget_s / len(depths))
        report(0.8 * (i + 1) / len(depths))
    step = 0.0
    companion: dict[int, float] = {}
    draft: dict[int, float] = {}
    if full.draft_model:
        step, companion = _side(engine, long, depths[0], longest, full.companion, 0.15 * budget_s)
        draft = _reading(engine, long, depths[0], 0.05 * budget_s)
    report(1.0)
    engine.set_tokens(0, [])
    llm.reset()
    medians = {d: {n: median(times) for n, times in s.items()} for d, s in seen.items()}
    return MeasuredCosts(medians, step, companion, _spread(seen), draft)


def _spread(seen: dict[int, dict[int, list[float]]]) -> float:
    all_times = [times for by_rows in seen.values() for times in by_rows.values()]
    quarters = [np.percentile(times, (25, 50, 75)) for times in all_times]
    return max(float((high - low) / middle) for low, middle, high in quarters)


def _target(
    engine: Engine, text: Sequence[int], depth: int, rows: Sequence[int], budget_s: float
) -> dict[int, list[float]]:
    """Times by rows in ms; one row and two are always measured."""
    found: dict[int, list[float]] = {n: [] for n in rows}
    end = perf_counter() + budget_s
    for _, n in product(range(41), rows):
        if perf_counter() > end and found[2 if 2 in found else 1]:
            break
        found[n].append(verify_ms(engine, text, depth, n))
    return _warm(found)


def _warm(found: dict[int, list[float]]) -> dict[int, list[float]]:
    """Drop each first time, which warmed caches and built graphs, unless the budget allowed no second one."""
    return {n: times[1:] or times for n, times in found.items() if times}


def _side(
    engine: Engine, text: Sequence[int], depth: int, kmax: int, companion: bool, budget_s: float
) -> tuple[float, dict[int, float]]:
    """Milliseconds of a draft's step, and of the companion's scoring by number of rows."""
    widths = sorted({n for n in (1, 2, 4, 8) if n < kmax} | {kmax})
    steps, scores = ({n: list[float]() for n in widths} for _ in range(2))
    engine.set_stop([0.0], None)
    # read again: a draft that reads states needs those of the tokens read last
    engine.set_tokens(0, [])
    ready(engine, text, depth)
    engine.put_draft(0, [])
    engine.draft([0], [1])  # reads the text, which with a large model takes longer than all steps
    end = perf_counter() + budget_s
    for again, n in product(range(1, 32), widths):
        if steps[widths[-1]] and perf_counter() > end:
            break
        # from a different place each time: at some the draft ends the answer and goes no further
        ready(engine, text, depth - again % 8)
        engine.put_draft(0, [])
        start = perf_counter()
        engine.draft([0], [n], keep_rows=companion)
        middle = perf_counter()
        drafted = engine.drafted(0).n
        if companion and drafted:
            engine.score([0])
        # a draft that ended the answer took one step more than it has tokens
        steps[n].append(1e3 * (middle - start) / min(n, drafted + 1))
        if drafted == n:
            scores[n].append(1e3 * (perf_counter() - middle))
    rows = {n: median(times) for n, times in _warm(scores).items()} if companion else {}
    return median(chain.from_iterable(_warm(steps).values())), rows


def _reading(engine: Engine, text: Sequence[int], depth: int, budget_s: float) -> dict[int, float]:
    """Milliseconds in which the draft reads this many tokens at once and drafts one."""
    found: dict[int, list[float]] = {2: [], 4: [], 8: []}
    end = perf_counter() + budget_s
    for again, n in product(range(21), found):
        if again > 1 and perf_counter() > end:
            break
        at = depth // 2 + again % 8
        ready(engine, text, at)
        engine.draft([0], [1])
        ready(engine, text, at + n - 1)
        start = perf_counter()
        engine.draft([0], [1])
        found[n].append(1e3 * (perf_counter() - start))
    return {n: median(times) for n, times in _warm(found).items()}
