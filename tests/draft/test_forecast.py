"""What drafts are expected to bring, and how that is learned."""

from hypothesis import given
from hypothesis import strategies as st

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.stopping import forecast, learn
from pyspec.draft.types import LOOKUP, Draft, SeqOutcome


def found(n=4, seq=0):
    """A lookup draft behind a match of six tokens."""
    return Draft(seq, n, source=LOOKUP, match_length=6)


def test_a_lookup_is_forecast_as_its_estimator_says():
    """Survival of the first token is what is learned of such matches."""
    learned = Acceptance()
    assert forecast(learned, found()).survival[0] == learned.lookup.predict(6, 1)[0]


def test_a_draft_that_was_not_verified_teaches_its_first_token():
    """The target's own choice says for nothing whether it was right."""
    learned = Acceptance()
    before = forecast(learned, found()).survival[0]
    for _ in range(3):
        learn(learned, forecast(learned, found()), SeqOutcome(0, 0, 0, next_match=False))
    assert forecast(learned, found()).survival[0] < before


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([None, True, False])))
)
def test_survival_stays_a_probability(rounds):
    """Whatever happens: falling along the draft, never nothing."""
    learned = Acceptance()
    for verified, accepted, after in rounds:
        outcome = SeqOutcome(0, verified, min(accepted, verified), next_match=after)
        learn(learned, forecast(learned, found()), outcome)
    chain = forecast(learned, found()).survival
    assert all(0.0 < b <= a <= 1.0 for a, b in zip([1.0, *chain], chain))
