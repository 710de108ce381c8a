"""Drafts beside a grammar: what it forces is drafted without a model, and what it forbids is never verified."""

from __future__ import annotations

from pyspec._lib import ffi
from pyspec.engine.handle import Engine
from pyspec.engine.runs import Run


def force(engine: Engine, run: Run, most: int) -> int:
    """Draft what a run's grammar forces, at most `most` tokens, and return how many."""
    if run.guide is None or most < 1 or run.drafting == "nothing":
        return 0
    tokens = run.guide.forced(most)
    if tokens:
        engine.put_draft(run.seq, tokens)
    return len(tokens)


def allowed(engine: Engine, run: Run, n: int) -> int:
    """Return how many of the first n drafted tokens of a run its grammar allows."""
    if run.guide is None or n == 0:
        return n
    tokens = ffi.unpack(engine.drafted(run.seq).token, n)
    n = run.guide.allows(tokens)
    run.guide.foresee(tokens[:n])
    return n
