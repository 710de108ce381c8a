"""Times decodes with an engine that holds a sequence: verifies by number of rows, and a draft's steps."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from pyspec.draft.costs import CostCurve
from pyspec.draft.row_times import SURE
from pyspec.engine.handle import PREFILL_CHUNK, Engine, Role

ROWS = (1, 2, 3, 4, 5, 8)
"""Row counts that decide between no draft, a short one and a long one, most important first."""

_REPEATS = 3
_MIN_TEXT = 32  # tokens of context that timing needs
_BUDGET_S = 0.4  # for all measurements, about


def ready(
    engine: Engine,
    text: Sequence[int],
    depth: int,
    *also: Role,
    chunk: int = PREFILL_CHUNK,
    held: int = -1,
) -> None:
    """Set the first `depth` tokens, and have the target and the `also` roles read all but the last of them.

    held: how many of them a decode left in the target's KV, unaccepted drafts included; -1: what was accepted.
    """
    engine.set_tokens(0, text[:depth], held)
    for role in (Role.TARGET, *also):
        while engine.held(role, 0) < depth - 1:
            engine.prefill(role, 0, depth - 1, chunk)


def verify_ms(engine: Engine, text: Sequence[int], depth: int, n: int) -> float:
    """Milliseconds of one verify of n rows after the first `depth` tokens of a sequence."""
    ready(engine, text, depth)
    engine.put_draft(0, text[depth : depth + n - 1])
    start = perf_counter()
    engine.verify([(0, 0, n - 1)])
    return 1e3 * (perf_counter() - start)


def least_verify_ms(
    engine: Engine, text: Sequence[int], rows: Sequence[int], budget_s: float
) -> dict[int, float]:
    """The shortest of several verifies near the end of a sequence, by row count: disturbances only make them longer.

    A row count behind the first is left out where earlier times show that it would exceed the budget.
    """
    found: dict[int, float] = {}
    end = perf_counter() + budget_s
    for n in rows:
        longest = max(found.values(), default=0.0)
        if found and perf_counter() + 1e-3 * _REPEATS * longest > end:
            break
        depth = len(text) - n
        found[n] = min(verify_ms(engine, text, depth, n) for _ in range(_REPEATS))
    return found


def least_step_ms(engine: Engine, text: Sequence[int]) -> float:
    """The shortest time in milliseconds of a draft step near the end of a sequence."""
    engine.set_stop([0.0], None)
    found: list[float] = []
    for again in range(_REPEATS + 1):
        ready(engine, text, len(text) - 1 - again)
        engine.put_draft(0, [])
        if again == 0:
            engine.draft([0], [1])  # reads what it lacks
            continue
        start = perf_counter()
        engine.draft([0], [3])
        # a draft that ended the answer took one step more than it has tokens
        found.append(1e3 * (perf_counter() - start) / min(3, engine.drafted(0).n + 1))
    return min(found)


def time_unseen(llm: Any, curve: CostCurve) -> None:
    """Time row counts that no round has shown: a guess that is too high would otherwise never be corrected.

    Runs after the last answer, which the user has already. Times are scaled by a one-row decode of the same moment.
    """
    loop, target = llm.assembly.loop, curve.target
    text, engine = llm.input_ids[: llm.n_tokens].tolist(), llm.assembly.engine
    rows = [n for n in ROWS if n <= loop.longest + 1 and (n == 1 or target.count(n) < SURE)]
    steps = loop.draft_model and not curve.draft.timed_here(1)
    if target.measured or len(text) < _MIN_TEXT or not target.count(1) or not (rows[1:] or steps):
        return
    engine.cancel(raised=False)
    found = least_verify_ms(engine, text, rows, _BUDGET_S)
    one = target.table(len(text))[1] / found[1]
    for n, ms in found.items():
        # a time far from the assumption is doubted at first
        for _ in range(SURE + 1 if n > 1 else 0):
            target.observe(n, one * ms, len(text))
    if steps:
        ms = least_step_ms(engine, text)
        for _ in range(SURE + 1):
            curve.draft.observe(1, one * ms)
