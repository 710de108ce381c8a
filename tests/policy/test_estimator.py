"""Tests of pyspec.policy.estimator, features, calibration and learned."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp, isfinite

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.errors import NumericError, OptionError
from pyspec.policy.calibration import Calibration
from pyspec.policy.estimator import MAX_CELLS, AdaptiveBins, Estimator, Logistic
from pyspec.policy.features import (
    Features,
    bin_centre,
    companion_features,
    draft_features,
    read_companion,
    read_draft,
    table_bin,
)
from pyspec.policy.learned import Learned, LearnedState
from pyspec.policy.lookups import LookupEstimator
from pyspec.policy.types import TABLE_BINS, Draft

Planted = Callable[[float, float], float]
WIDTH = 6


def smooth(p: float, h: float) -> float:
    """A planted acceptance that is monotone in both."""
    return 1.0 / (1.0 + exp(-(3.0 * p - 1.0 - 0.5 * h)))


def ring(p: float, _: float) -> float:
    """A planted acceptance that no linear model can follow."""
    return 0.9 if 0.35 < p < 0.65 else 0.15


def teach(model: Estimator, planted: Planted, n: int, seed: int = 0) -> None:
    """Show n random positions."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    for _ in range(n):
        p, h = rng.uniform(0.02, 0.98), rng.uniform(0.0, 3.0)
        model.update(draft_features(0, p, h), rng.random() < planted(p, h))


def error(model: Estimator, planted: Planted) -> float:
    """Mean absolute error on a lattice."""
    points = [(p / 20, h / 4) for p in range(1, 20) for h in range(12)]
    wrong = [abs(model.predict(draft_features(0, p, h)) - planted(p, h)) for p, h in points]
    return sum(wrong) / len(wrong)


def fresh() -> list[Estimator]:
    """One of each kind."""
    return [AdaptiveBins(), Logistic([0.0] * WIDTH), Learned().draft]


@pytest.mark.parametrize("kind", range(3))
def test_estimators_converge_to_planted_acceptance(kind: int) -> None:
    """After some thousand positions the mean error is small."""
    model = fresh()[kind]
    teach(model, smooth, 6000)
    assert error(model, smooth) < 0.07


@pytest.mark.parametrize(("kind", "left"), [(0, 0.75), (1, 0.4), (2, 0.4)])
def test_estimators_follow_a_sudden_change(kind: int, left: float) -> None:
    """After the target changed its mind, the estimate follows within 1500 positions.

    Fine bins each see few of them and follow slowly; the mix then takes the logistic model.
    """
    model = fresh()[kind]
    teach(model, smooth, 4000)
    turned: Planted = lambda p, h: 1.0 - smooth(p, h)  # noqa: E731
    before = error(model, turned)
    teach(model, turned, 1500, seed=1)
    assert error(model, turned) < left * before


def test_the_mix_picks_the_bins_where_a_line_cannot_follow() -> None:
    """The estimator with the lower log-loss decides."""
    mix = Learned().draft
    assert mix.chosen == "logistic"
    teach(mix, ring, 6000)
    assert mix.chosen == "bins"
    assert mix.loss_bins < mix.loss_logistic
    assert error(mix, ring) < 0.16


def test_bins_stay_within_the_papers_number_and_split_where_dense() -> None:
    """At most 272 cells; a corner with all the data is cut finer than an empty one."""
    bins = AdaptiveBins(split_at=8)
    rng = random.Random(2)  # noqa: S311 - reproducible, not secret
    for _ in range(60000):
        f = Features((1.0,), rng.random() ** 4, rng.random() ** 4)
        bins.update(f, rng.random() < f.u)
    assert 200 < bins.cells <= MAX_CELLS
    sizes = bins.state()
    dense, empty = sizes.cell_of[0], sizes.cell_of[-1]
    assert sizes.size[dense] < sizes.size[empty]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1.0),
            st.floats(0.0, 1e300),
            st.floats(0.0, 1.0),
            st.floats(0.0, 1.0),
            st.booleans(),
        ),
        max_size=80,
    )
)
def test_estimates_stay_finite(rows: list[tuple[float, float, float, float, bool]]) -> None:
    """Extreme but legal inputs, p = 0 and p = 1 included, never give a NaN or a certainty."""
    learned = Learned()
    for i, (p, h, s, a, hit) in enumerate(rows):
        f = draft_features(i, p, h)
        full = companion_features(f, s, a, p, hit)
        without, with_ = learned.draft.predict(f), learned.companion.predict(full)
        assert 0.0 < min(without, with_) <= max(without, with_) < 1.0
        learned.learn_draft(i, f, hit, 1.0, i % 3)
        learned.learn_companion(full, without, with_, hit)
    assert isfinite(learned.companion_bits)


@pytest.mark.parametrize(
    ("p", "h"), [(float("nan"), 1.0), (1.5, 1.0), (-0.1, 1.0), (0.5, float("nan")), (0.5, -1.0)]
)
def test_values_that_are_no_probability_are_refused(p: float, h: float) -> None:
    """NaN and values outside their range raise NumericError."""
    with pytest.raises(NumericError):
        draft_features(0, p, h)


def test_a_draft_ends_before_its_first_nonsense() -> None:
    """A NaN cuts the draft there; a companion's NaN drops only the companion."""
    draft = Draft(0, 3, [0.9, float("nan"), 0.9], [0.1, 0.1, 0.1])
    assert len(read_draft(draft)) == 1
    whole = Draft(0, 1, [0.9], [0.1], [0.5], [float("nan")], [0.5], [True])
    assert read_companion(whole, read_draft(whole)) is None


@pytest.mark.parametrize("k", range(TABLE_BINS))
def test_bins_of_the_table_are_equal_in_logit(k: int) -> None:
    """The centre of a bin lies in it, and it is what u times 32 says."""
    p = 1.0 / (1.0 + exp(-bin_centre(k)))
    assert table_bin(p) == k
    assert int(draft_features(0, p, 0.0).u * TABLE_BINS) == k


def test_calibration_learns_and_shrinks() -> None:
    """Bins seen often have their own mean, bins never seen keep a value near the diagonal."""
    table = Calibration()
    before = list(table.table(1))
    for _ in range(400):
        table.update(0, 20, accepted=False)
    assert table.table(1)[20] < 0.05
    assert table.table(1)[10] == before[10]
    assert table.by_position() == [0.0]


def test_long_matches_are_trusted_more_and_failures_teach() -> None:
    """A lookup's estimate grows with the match and falls after refusals."""
    lookup = LookupEstimator()
    assert lookup.predict(8, 3)[0] > lookup.predict(1, 3)[0]
    before = lookup.predict(8, 3)[0]
    for _ in range(60):
        lookup.update(8, hits=[False])
    assert lookup.predict(8, 3)[0] < 0.3 < before
    assert len(lookup.predict(8, 10)) == 10


def test_a_match_with_several_continuations_is_trusted_less() -> None:
    """And what is learned of it says nothing about the others."""
    lookup = LookupEstimator()
    before = lookup.predict(5, 4)
    assert all(a < b for a, b in zip(lookup.predict(5, 4, choices=2), before, strict=True))
    for _ in range(20):
        lookup.update(5, [False], choices=2)
    lookup.recent = 0.5
    assert lookup.predict(5, 4) == before


def test_information_of_a_companion_that_knows() -> None:
    """A companion that agrees exactly where the target accepts lowers the log-loss."""
    learned = Learned()
    rng = random.Random(5)  # noqa: S311 - reproducible, not secret
    for _ in range(2000):
        hit = rng.random() < 0.5
        f = draft_features(0, 0.5, 1.0)
        full = companion_features(f, 0.7, 1.0, 0.9 if hit else 0.1, hit)
        without, with_ = learned.draft.predict(f), learned.companion.predict(full)
        learned.learn_draft(0, f, hit, 1.0, 1)
        learned.learn_companion(full, without, with_, hit)
    assert learned.companion_bits > 0.4
    assert learned.companion_helps


def test_learned_round_trip() -> None:
    """What was learned survives JSON, prediction for prediction."""
    learned = Learned()
    teach(learned.draft, ring, 3000)
    learned.lookup.update(4, hits=[True, True, False])
    learned.calibration.update(0, 20, accepted=True)
    raw = msgspec.json.encode(learned.state())
    again = Learned.restore(msgspec.json.decode(raw, type=LearnedState))
    for p in (0.1, 0.5, 0.9):
        f = draft_features(1, p, 0.5)
        assert again.draft.predict(f) == learned.draft.predict(f)
    assert again.lookup.predict(4, 5) == learned.lookup.predict(4, 5)
    assert again.calibration.table(1) == pytest.approx(learned.calibration.table(1))


@pytest.mark.parametrize("damage", ["cell", "mean", "width", "weight", "seen", "loss"])
def test_contradicting_state_is_refused(damage: str) -> None:
    """Each planted contradiction is an OptionError, never an IndexError later."""
    state = msgspec.json.decode(msgspec.json.encode(Learned().state()), type=LearnedState)
    if damage == "cell":
        state.draft.bins.cell_of[7] = 999
    elif damage == "mean":
        state.draft.bins.mean[0] = 1.5
    elif damage == "width":
        state.draft.logistic.weights.pop()
    elif damage == "weight":
        state.draft.logistic.weights[0] = 1e9
    elif damage == "seen":
        state.calibration.seen[0][0] = -1.0
    else:
        state.draft.loss_bins = -1.0
    with pytest.raises(OptionError):
        Learned.restore(state)
