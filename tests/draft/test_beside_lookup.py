"""Tests of pyspec.draft.goodput: a draft model beside a lookup, on recorded answers."""

from __future__ import annotations

from pathlib import Path

from pyspec.draft.costs import CostCurve
from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.types import Place

ROOT = Path(__file__).parents[2]
HEAD = ROOT / "models" / "smollm2-eagle3.gguf"
ROWS = {1: 1.0, 2: 1.34, 3: 1.42, 4: 1.81, 5: 1.91, 6: 2.16, 7: 2.48, 8: 2.68, 9: 2.8, 12: 3.48, 16: 4.4, 64: 14.0}  # fmt: skip
DRAWS = {"0": "greedy", "0.8": "coupled"}


def test_without_a_model_no_match_yields_to_one() -> None:
    """Where lookup is all there is, nothing is planned for a model, and a match need not be worth more than its drafts."""
    policy = GoodputPolicy(CostCurve.prior("cuda", 10.0, 0.1, 0.1))
    alone = policy.plan([Place(0, 16, depth=100, longest=0)])
    assert (list(alone.lengths), alone.lookup_min) == ([0], 1)
    policy = GoodputPolicy(CostCurve.prior("cuda", 10.0, 0.1, 0.1))
    beside = policy.plan([Place(0, 16, depth=100)])
    assert beside.lengths[0] > 0
    assert beside.lookup_min > 1
