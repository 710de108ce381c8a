"""Tests of pyspec.draft.acceptance."""

import random
from math import exp

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pyspec.draft.acceptance import (
    Acceptance,
    Calibration,
    Logistic,
    LookupEstimator,
    companion_features,
    draft_bins,
    fit_line,
)
from pyspec.draft.types import TABLE_BINS, Draft, bin_centre, table_bin
from pyspec.errors import OptionError


def scored(p, s, a, pc, agree):
    full = companion_features(Draft(0, 1, [p], [s], [a], [pc], [agree]), 1)
    return full[0]


def planted(p, pc):
    return 1.0 / (1.0 + exp(-(2.0 * p + 3.0 * pc - 2.5)))


def teach(model, n, seed=0, turned=False):
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    for _ in range(n):
        p, pc = rng.uniform(0.02, 0.98), rng.uniform(0.02, 0.98)
        x = scored(p, 0.5, 0.5, pc, False)
        hit = (rng.random() < planted(p, pc)) != turned
        model.learn(x, hit - model.predict(x))


def error(model, turned=False):
    points = [(p / 20, pc / 20) for p in range(1, 20) for pc in range(1, 20)]
    said = {each: model.predict(scored(each[0], 0.5, 0.5, each[1], False)) for each in points}
    return sum(abs(p - abs(turned - planted(*each))) for each, p in said.items()) / len(said)


def test_the_logistic_model_converges_and_follows_a_sudden_change():
    model = Logistic([0.0] * 6)
    teach(model, 6000)
    assert error(model) < 0.08
    before = error(model, turned=True)
    teach(model, 1500, seed=1, turned=True)
    assert error(model, turned=True) < 0.4 * before


@pytest.mark.parametrize("p", [float("nan"), 1.5, -0.1])
def test_a_draft_ends_before_its_first_nonsense(p):
    """NaN and values outside their range say nothing, nor does what comes after them."""
    assert len(draft_bins(Draft(0, 3, [0.9, p, 0.9]))) == 1


@pytest.mark.parametrize("k", range(TABLE_BINS))
def test_bins_of_the_table_are_equal_in_logit(k):
    p = 1.0 / (1.0 + exp(-bin_centre(k)))
    assert table_bin(p) == k


@given(st.lists(st.tuples(st.integers(0, TABLE_BINS - 1), st.booleans()), max_size=60))
def test_the_table_is_between_the_means_and_the_line(seen):
    table = Calibration()
    for k, accepted in seen:
        table.update(0, k, accepted)
    for k in range(TABLE_BINS):
        line = table._prior[k]
        mean = table.hits[k] / table.seen[k] if table.seen[k] else line
        assert min(line, mean) - 1e-3 <= table.table[k] <= max(line, mean) + 1e-3
        assert 0.0 < table.table[k] < 1.0


def test_few_tokens_tell_of_all_bins():
    """A draft that is worse than was assumed is so where it was not seen nearby, too, and one that is better likewise."""
    for accepted in (False, True):
        table = Calibration()
        before = list(table.table)
        for k in range(12, 24):
            table.update(0, k, accepted)
        unseen = [*range(8, 12), *range(24, TABLE_BINS - 1)]
        assert all((table.table[k] > before[k]) == accepted for k in unseen)


bins = st.lists(st.integers(0, 300), min_size=TABLE_BINS, max_size=TABLE_BINS)


@given(bins, st.lists(st.floats(0, 1), min_size=TABLE_BINS, max_size=TABLE_BINS))
def test_a_fitted_line_is_the_likeliest(seen, means):
    n = np.array(seen, float)
    hits = n * np.array(means)
    assumed = np.array([0.0, 0.65])
    line = fit_line(hits, n, assumed, 60)
    assume(abs(line[0]) < 6.0 and 0.05 < line[1] < 2.0)
    best = _likelihood(line, hits, n, assumed)
    for step in ([0.02, 0.0], [-0.02, 0.0], [0.0, 0.02], [0.0, -0.02]):
        assert _likelihood(line + step, hits, n, assumed) <= best + 1e-9


def _likelihood(line, hits, seen, assumed):
    x = np.array([bin_centre(k) for k in range(TABLE_BINS)])
    z = line[0] + line[1] * x
    tokens = hits * -np.logaddexp(0.0, -z) + (seen - hits) * -np.logaddexp(0.0, z)
    return float(tokens.sum() - 0.5 * (((line - assumed) / [0.7, 0.25]) ** 2).sum())


def test_drafts_drawn_with_the_targets_noise_have_a_table_of_their_own():
    seen = Acceptance()
    for _ in range(200):
        seen.calibration.update(0, 16, False)
    assert seen.under("coupled").calibration.table[16] > 0.3


def test_learned_round_trip():
    learned = Acceptance()
    teach(learned.companion, 3000)
    learned.lookup.update(4, hits=[True, True, False])
    learned.calibration.update(0, 20, accepted=True)
    raw = msgspec.json.encode(learned)
    again = msgspec.json.decode(raw, type=Acceptance)
    for p in (0.1, 0.5, 0.9):
        x = scored(p, 0.5, 0.5, 0.5, agree=True)
        assert again.companion.predict(x) == learned.companion.predict(x)
    assert again.lookup.predict(4, 5) == learned.lookup.predict(4, 5)
    # the line is fitted when it is read, and else when a tenth more was seen
    assert again.calibration.table == pytest.approx(learned.calibration.table, abs=0.03)


@pytest.mark.parametrize(("part", "name", "damage"), [
    ("companion", "weights", lambda old: old[:-1]),
    ("companion", "weights", lambda old: [1e9, *old[1:]]),
    ("calibration", "seen", lambda old: [-1.0, *old[1:]]),
    ("calibration", "later", lambda _: [0.0] * TABLE_BINS),
    ("lookup", "mean", lambda old: [1.5, *old[1:]]),
])  # fmt: skip
def test_contradicting_state_is_refused(part, name, damage):
    saved = msgspec.to_builtins(Acceptance())
    saved[part][name] = damage(saved[part][name])
    with pytest.raises(OptionError):
        msgspec.convert(saved, Acceptance)


def test_what_is_assumed_of_tokens_to_come_gives_way_to_what_is_seen():
    """Twenty first tokens of one kind are what first tokens look like; later ones are learned of apart."""
    table = Calibration()
    before = list(table.nexts()[1])
    for _ in range(20):
        table.update(0, 5, accepted=False)
    first, later = table.nexts()
    assert first[5] > 0.8
    assert first.sum() == later.sum() == pytest.approx(1.0)
    assert list(later) == before


def test_a_mean_outlives_what_is_forgotten():
    """A bin that is right every second time is so after a thousand tokens, too, and turns within some hundred."""
    table = Calibration()
    for n in range(1000):
        table.update(0, 16, accepted=n % 2 == 0)
    assert table.table[16] == pytest.approx(0.5, abs=0.02)
    for _ in range(300):
        table.update(0, 16, accepted=False)
    assert table.table[16] < 0.25


def test_a_companion_that_says_nonsense_or_not_all_is_dropped():
    whole = {"s": [0.5] * 2, "a": [0.5] * 2, "pc": [0.5] * 2, "agree": [True] * 2}
    assert companion_features(Draft(0, 2, [0.9] * 2, **whole), 2) is not None
    for wrong in (
        {"a": [float("nan"), 0.5]},
        *({name: values[:1]} for name, values in whole.items()),
    ):
        assert companion_features(Draft(0, 2, [0.9] * 2, **{**whole, **wrong}), 2) is None


def test_long_matches_are_trusted_more_and_failures_teach():
    lookup = LookupEstimator()
    assert lookup.predict(8, 3)[0] > lookup.predict(1, 3)[0]
    before = lookup.predict(8, 3)[0]
    for _ in range(60):
        lookup.update(8, hits=[False])
    assert lookup.predict(8, 3)[0] < 0.3 < before
    assert len(lookup.predict(8, 10)) == 10


def test_matches_long_ago_are_forgotten():
    lookup = LookupEstimator()
    for hit in [True] * 1000 + [False] * 400:
        lookup.update(8, [hit])
    assert lookup.predict(8, 1)[0] < 0.35
