"""What drafts are expected to bring, and how that is learned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspec.policy.acceptance import Learned
from pyspec.policy.stopping import Forecaster
from pyspec.policy.types import LOOKUP, Draft, SeqOutcome


def found(n: int = 4, seq: int = 0) -> Draft:
    """A lookup draft behind a match of six tokens."""
    return Draft(seq, n, source=LOOKUP, match_length=6)


def disappoint(forecaster: Forecaster, times: int, seq: int = 0) -> None:
    """Lookup drafts of which nothing is accepted."""
    for _ in range(times):
        forecaster.learn(forecaster.read(found(seq=seq)), SeqOutcome(seq, 4, 0))


def expected(forecaster: Forecaster, learned: Learned, seq: int = 0) -> float:
    """First token's survival, as a share of what is learned of such matches."""
    return forecaster.read(found(seq=seq)).survival[0] / learned.lookup.predict(6, 1)[0]


def test_lookup_is_believed_at_first() -> None:
    """What is learned of matches holds for a new text."""
    learned = Learned()
    assert expected(Forecaster(learned), learned) == 1.0


def test_disappointed_text_expects_less() -> None:
    """More than the estimator learns for all texts; another sequence's text is not blamed."""
    learned = Learned()
    forecaster = Forecaster(learned)
    disappoint(forecaster, 3)
    assert expected(forecaster, learned) < 0.6
    assert expected(forecaster, learned, seq=1) == 1.0


def test_next_text_inherits_some_distrust() -> None:
    """And no more by being announced twice."""
    learned = Learned()
    forecaster = Forecaster(learned)
    disappoint(forecaster, 3)
    before = expected(forecaster, learned)
    forecaster.begin_answer()
    after = expected(forecaster, learned)
    assert before < after < 1.0
    forecaster.begin_sequence(0)
    assert expected(forecaster, learned) == after


def test_draft_that_was_not_verified_teaches_its_first_token() -> None:
    """The target's own choice says for nothing whether it was right."""
    learned = Learned()
    forecaster = Forecaster(learned)
    for _ in range(3):
        forecaster.learn(forecaster.read(found()), SeqOutcome(0, 0, 0, next_match=False))
    assert expected(forecaster, learned) < 0.8


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([None, True, False])))
)
def test_survival_stays_a_probability(rounds: list[tuple[int, int, bool | None]]) -> None:
    """Whatever happens: falling along the draft, never more than is learned, never nothing."""
    learned = Learned()
    forecaster = Forecaster(learned)
    for verified, accepted, after in rounds:
        outcome = SeqOutcome(0, verified, min(accepted, verified), next_match=after)
        forecaster.learn(forecaster.read(found()), outcome)
    chain = forecaster.read(found()).survival
    assert all(0.0 < b <= a <= 1.0 for a, b in zip([1.0, *chain], chain))
    assert chain[0] <= learned.lookup.predict(6, 1)[0]
