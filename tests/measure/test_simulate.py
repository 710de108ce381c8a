"""A policy played on texts, as the engine plays it."""

import pytest
from helpers.answers import Diary
from helpers.making import FLAT, synthetic
from measure.simulate import Costs, Player, Times, fixed_speed, oracle_speed

from pyspec.draft.simple import FixedPolicy


def test_the_lag_is_the_prompt_at_first_and_one_token_after_full_acceptance():
    """As the engine's KV has it: ten tokens of prompt, the last one aside, and the first round's token."""
    diary = Diary(2)
    Player(diary, FLAT).play(synthetic(0.98))
    assert diary.places[0].lag == 10
    assert {place.lag for place in diary.places[1:]} == {0, 1}
    assert diary.places[0].left == 59


def test_what_is_drafted_and_not_verified_is_kept():
    """Five drafted and one verified of a draft that is right: three go on, and two steps make the next draft."""

    class Cautious(Diary):
        def choose(self, drafts):
            return [min(1, n) for n in super().choose(drafts)]

    (text,) = synthetic(0.5, 40, spread=0.0)
    for chain in text.models.values():
        chain.matched = 16
    policy = Cautious(5)
    Player(policy, FLAT).play([text])
    assert [outcome.draft_steps for outcome in policy.outcomes[:5]] == [5, 2, 2, 2, 2]


@pytest.mark.parametrize("window", [0, 8])
def test_a_fixed_policy_is_as_fast_as_the_closed_form_says(window):
    texts = synthetic(0.7, n=3, window=window)
    costs = Costs(FLAT.target, Times({1: 1.0, 16: 12.0}), FLAT.companion)
    for k in (0, 1, 4):
        played = Player(FixedPolicy(k), costs).play(texts)
        assert played.speed == pytest.approx(fixed_speed(texts, costs, k))


def test_times_go_on_behind_their_last_point():
    times = Times({1: 1.0, 8: 2.0, 16: 4.0})
    assert [times(n) for n in (0, 1, 12, 16, 20)] == pytest.approx([0.0, 1.0, 3.0, 4.0, 5.0])


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


@pytest.mark.parametrize("acceptance", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("spread", [0.0, 1.5])
def test_synthetic_texts_have_the_planted_acceptance(acceptance, spread):
    text = synthetic(acceptance, 6000, spread=spread)[0]
    right = sum(text.model(t).matched > 0 for t in range(text.length))
    assert right / text.length == pytest.approx(acceptance, abs=0.03)


def test_chains_from_different_positions_agree():
    """Where a chain has m right tokens, the next position's has m - 1, or more at the longest."""
    text = synthetic(0.8, 200)[0]
    for t in range(199):
        here, after = text.model(t).matched, text.model(t + 1).matched
        assert after == here - 1 or here in (0, 16)
