"""What lookups may gain and lose beside a model's drafts."""

import pytest
from helpers.known_costs import LINE, SIDE, measured

from pyspec.draft.types import Place


@pytest.mark.parametrize("left", [20, 60])
def test_catching_up_that_costs_more_than_is_left_is_not_begun(left):
    policy = measured()
    for _ in range(40):
        policy._drafting[0].used(3.0, 5.0)
    lag = int(left * LINE[1] / (SIDE[2] - SIDE[1])) + 1
    assert policy.plan([Place(0, 16, lag, left, 50)]).lengths == [0]
    policy.begin_sequence(0)
    assert policy.plan([Place(0, 16, lag // 5, left, 50)]).lengths == [16]
