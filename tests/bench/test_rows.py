"""`bench/rows.py`: rows along a text, of a model and of a head that goes on with states of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from measure.logits import rows_after

from pyspec.sampling.chain import Sampling

LENGTH = 40


@pytest.fixture
def recorded(script, open_llama, tiny_target: Path):
    """A text that no end cuts short, with rows of a draft, three at each place."""

    def of(draft: Path):
        llm, rows = open_llama(tiny_target, draft=draft), script("rows")
        ways = (Sampling(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0, seed=i) for i in range(40))
        texts = (rows.record(llm, [5, 6, 7], how, LENGTH, 3, rows.Recorder)[0] for how in ways)
        return next(text for text in texts if len(text.tokens) == 3 + LENGTH)

    return of


def test_every_place_has_rows_as_far_as_the_draft_may_say_the_text(
    script, recorded, tiny_draft: Path, tiny_eagle3: Path
) -> None:
    """Up to three, fewer behind a token that it would hardly say; noise is found that draws the others."""
    least = script("rows").LEAST
    for draft in (tiny_draft, tiny_eagle3):
        text = recorded(draft)
        assert list(text.places) == list(range(4, 4 + len(text.places)))
        assert len(text.places) > LENGTH - 3
        for at, place in text.places.items():
            assert not place.unknown
            ahead = text.tokens[at : min(at + 3, 2 + LENGTH)]
            shares = [np.exp(row[t] - row.max()) for row, t in zip(place.rows, ahead, strict=False)]
            assert all(share >= least for share in shares[:-1])
            assert len(shares) >= len(ahead) or shares[-1] < least


def test_a_heads_rows_are_of_its_own_states(recorded, tiny_eagle3: Path) -> None:
    """Behind a token that it drafted it has another row than behind the same token of the text."""
    text = recorded(tiny_eagle3)
    pairs = [
        (place.rows[1], text.places[at + 1].rows[0])
        for at, place in text.places.items()
        if len(place.rows) > 1 and at + 1 in text.places
    ]
    assert len(pairs) > 2
    assert not any(np.allclose(*pair, atol=1e-3) for pair in pairs)


def test_a_models_rows_are_those_of_the_text(
    recorded, open_llama, tiny_target: Path, tiny_draft: Path
) -> None:
    text = recorded(tiny_draft)
    alone = list(rows_after(open_llama(tiny_draft), text.tokens[:3], text.tokens[3:]))
    for at, place in text.places.items():
        for i, row in enumerate(place.rows):
            assert np.allclose(row, alone[at - 3 + i], atol=1e-2)


def test_what_the_engine_drafts_is_kept_beside(recorded, tiny_target: Path) -> None:
    """A target that drafts for itself, with its own noise, drafts the text."""
    text = recorded(tiny_target)
    for at, place in text.places.items():
        assert place.drafted == text.tokens[at : min(at + 3, 2 + LENGTH)]
