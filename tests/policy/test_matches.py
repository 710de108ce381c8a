"""Tests of pyspec.policy.matches."""

from __future__ import annotations

from pyspec.policy.matches import LookupEstimator


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
