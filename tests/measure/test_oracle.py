"""What is best by hindsight."""

import pytest
from helpers.making import FLAT, synthetic
from measure.oracle import oracle_speed
from measure.simulate import Costs, Times, fixed_speed


@pytest.mark.parametrize("acceptance", [0.3, 0.7, 0.95])
def test_no_fixed_length_is_faster_than_the_oracle(acceptance):
    texts = synthetic(acceptance, n=3)
    for step in (1.0, 20.0):
        costs = Costs(FLAT.target, Times({1: step, 16: step}), FLAT.companion)
        best = max(fixed_speed(texts, costs, k) for k in range(17))
        assert oracle_speed(texts, costs) >= best


def test_the_oracle_takes_a_wrong_token_where_more_rows_are_cheaper():
    """Two rows at 20 ms, three at 10: of a draft whose first token is right it verifies two, 16 times."""
    text = synthetic(0.5, 34, spread=0.0)[0]
    for chain in text.models.values():
        chain.matched = 1
    stairs = Costs(Times({1: 10.0, 2: 20.0, 3: 10.0, 16: 90.0}), FLAT.draft, FLAT.companion)
    assert oracle_speed([text], stairs) == pytest.approx(34 / (10.0 + 16 * (10.0 + 2.0) + 10.0))


def test_the_oracle_drafts_what_is_accepted_and_no_more():
    """All right, a step of 1 ms and verifying at 10 whatever the rows: the first token alone, then 16 and one at a time."""
    text = synthetic(0.5, 35, spread=0.0)[0]
    for chain in text.models.values():
        chain.matched = 16
    assert oracle_speed([text], FLAT) == pytest.approx(35 / (10.0 + 2 * (10.0 + 16.0)))
