"""What lookups may gain and lose beside a model's drafts."""

from __future__ import annotations

import pytest
from helpers.known_costs import LINE, SIDE, measured

from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.stopping import survivals
from pyspec.draft.types import LOOKUP, Draft, Place


def looked_up(lost: float, *, auto: bool = True) -> tuple[int, float, float]:
    """How much of a weak match is verified in a text that lost so many tokens, and what that and one row more may lose."""
    policy = measured(auto=auto)
    policy.plan([Place(0, 16, 0, 200, 50)])
    policy._texts[0].lost = lost
    policy.learned.lookup.recent = 1.0
    (g,) = policy.choose([Draft(0, 16, source=LOOKUP, match_length=9)])
    chain = survivals(policy.learned.lookup.predict(9, 16))
    costs = [(LINE[1 + n] - LINE[1]) / LINE[1] for n in (g, g + 1)]
    return g, *(cost - sum(chain[: int(cost)]) for cost in costs)


def test_a_lookup_draft_whose_risk_its_text_cannot_bear_is_cut() -> None:
    """Half a token where that may still be lost, nothing where nothing may; more is verified where lookups have won."""
    g, risk, risk_of_more = looked_up(lost=1.42)
    assert 0 < g < 16
    assert risk <= 0.5 < risk_of_more
    assert looked_up(lost=100.0)[0] == 0
    assert looked_up(lost=-100.0)[0] > g
    assert looked_up(lost=100.0, auto=False)[0] > g  # where drafts are always on


@pytest.mark.parametrize("left", [20, 60])
def test_catching_up_that_costs_more_than_is_left_is_not_begun(left: int) -> None:
    """However well the draft does; a fifth of that is paid."""
    policy = measured()
    for _ in range(40):
        policy._drafting[1].used(3.0, 5.0)
    lag = int(left * LINE[1] / (SIDE[2] - SIDE[1])) + 1
    assert policy.plan([Place(0, 16, lag, left, 50)]).lengths == [0]
    policy.begin_sequence(0)
    assert policy.plan([Place(0, 16, lag // 5, left, 50)]).lengths == [16]


def taught(of_ten: int) -> GoodputPolicy:
    """A policy whose draft was right in so many of ten tokens."""
    policy = measured(auto=False)
    for n in range(200):
        policy.learned.calibration.update(n % 2, 25, (n // 2) % 10 < of_ten)
    return policy


def test_the_better_the_model_the_longer_a_match_has_to_be() -> None:
    """The shortest one is the first whose draft is worth more than the model's, and than nothing."""
    shortest = []
    for of_ten in (0, 6):
        policy = taught(of_ten)
        shortest.append(policy.plan([Place(0, 16, 0, 200, 50)]).lookup_min)
        worth = []
        for match in (shortest[-1] - 1, shortest[-1]):
            chain = survivals(policy.learned.lookup.predict(match, 16))
            values = [sum(chain[:g]) - (LINE[1 + g] - LINE[1]) / LINE[1] for g in range(17)]
            worth.append(max(values))
        assert shortest[-1] == 1 or worth[0] <= policy._table.gain
        assert worth[1] > max(0.0, policy._table.gain)
    assert shortest[0] <= 2 < shortest[1]
