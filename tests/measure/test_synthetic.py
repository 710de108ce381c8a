"""Texts with planted acceptance."""

import pytest
from helpers.making import synthetic


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
