"""Tests of pyspec.policy.goodput: a draft model beside a lookup, on recorded answers."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from measure.simulate import Costs, Player, Times, load_rounds

from pyspec.engine.profiles import read_prior
from pyspec.policy.cost import CostCurve
from pyspec.policy.goodput import GoodputPolicy
from pyspec.policy.shapes import SHAPES
from pyspec.policy.switch import UseSwitch
from pyspec.policy.types import Place

ROOT = Path(__file__).parents[2]
HEAD = ROOT / "models" / "smollm2-eagle3.gguf"
ROWS = {1: 1.0, 2: 1.34, 3: 1.42, 4: 1.81, 5: 1.91, 6: 2.16, 7: 2.48, 8: 2.68, 9: 2.8, 12: 3.48, 16: 4.4, 64: 14.0}  # fmt: skip
DRAWS = {"0": "greedy", "0.8": "coupled"}


class Always(UseSwitch):
    """Uses the model in every round, and keeps what was expected of it and what came."""

    expected: list[float]
    gained: list[float]

    def on(self, seq: int, expected: float, *words: float, **others: Any) -> bool:
        """In every round, whatever `UseSwitch` says."""
        self._expects = expected
        super().on(seq, expected, *words, **others)
        return True

    def used(self, gain: float, tokens: float = 1.0, seq: int = 0) -> None:
        self.expected.append(self._expects)
        self.gained.append(gain)
        super().used(gain, tokens, seq)


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_hard_tokens_are_left_to_a_model(temperature: str) -> None:
    """Beside a lookup it is expected to gain what it gains there, within .01 tokens a round."""
    truth = Costs(Times(ROWS, 10.0), Times(SHAPES["head"], 1.0), Times({1: 1.0}))
    known = read_prior(HEAD)
    assert known is not None
    Always.expected, Always.gained = [], []
    for i, answer in enumerate(load_rounds(ROOT / f"bench/firsts/everyday-{temperature}.gz")):
        learned = known.restore(known.draft, "").under(DRAWS[temperature], relaxing=False)
        Player(GoodputPolicy(truth.curve(), learned, switch=Always), truth, i).play([answer])
    assert fmean(Always.expected) == pytest.approx(fmean(Always.gained), abs=0.01)


def test_without_a_model_no_match_yields_to_one() -> None:
    """Where lookup is all there is, nothing is planned for a model, and a match need not be worth more than its drafts."""
    policy = GoodputPolicy(CostCurve.prior("cuda", 10.0, 0.1, 0.1))
    alone = policy.plan([Place(0, 16, depth=100, longest=0)])
    assert (list(alone.lengths), alone.lookup_min) == ([0], 1)
    policy = GoodputPolicy(CostCurve.prior("cuda", 10.0, 0.1, 0.1))
    beside = policy.plan([Place(0, 16, depth=100, looks_up=True)])
    assert beside.lengths[0] > 0
    assert beside.lookup_min > 1
