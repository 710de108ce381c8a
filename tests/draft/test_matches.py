"""Tests of pyspec.draft.acceptance: lookup."""

from pyspec.draft.acceptance import LookupEstimator


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


def test_a_few_matches_change_little():
    lookup, chances = LookupEstimator(), []
    for _ in range(30):
        lookup.update(14, [False])
        chances.append(lookup.predict(14, 1)[0])
    assert chances[2] > 0.4
    assert chances[29] < 0.2
