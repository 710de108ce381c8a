"""What is believed before the first round: `pyspec.profiles`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspec.errors import ProfileError
from pyspec.policy.acceptance import Learned
from pyspec.policy.profile import prior_path
from pyspec.profiles import Side, prior_learned, save_prior


def loaded(*paths) -> list[Side]:
    """Files as loaded models, draft first."""
    return [Side(path, path.stat().st_size) for path in paths]


@pytest.fixture
def draft(tmp_path):
    """A file that stands for a draft."""
    path = tmp_path / "d.gguf"
    path.write_bytes(b"weights")
    return path


def seen() -> Learned:
    """A state unlike a fresh one."""
    learned = Learned()
    for _ in range(50):
        learned.calibration.update(0, 3, True)
    return learned


def test_a_draft_begins_with_its_prior(draft) -> None:
    """What was written beside it is what a policy begins with."""
    save_prior(loaded(draft), seen())
    assert prior_learned(loaded(draft)) == seen()


def test_a_draft_without_a_prior_begins_with_nothing(draft) -> None:
    """As does a session without a draft."""
    assert prior_learned(loaded(draft)) == Learned()
    assert prior_learned(loaded()) == Learned()


def test_a_prior_that_cannot_be_used_is_a_warning(draft, caplog) -> None:
    """Changed weights make it another draft's: one sentence, and everything is learned anew."""
    save_prior(loaded(draft), seen())
    draft.write_bytes(b"other weights")
    with caplog.at_level(logging.WARNING, "pyspec"):
        assert prior_learned(loaded(draft)) == Learned()
    assert "another draft" in caplog.text
    prior_path(draft).write_text("no json")
    assert prior_learned(loaded(draft)) == Learned()


def test_the_shipped_head_has_a_prior(caplog) -> None:
    """It is of the very file that ships, and says more than nothing."""
    shipped = Path(__file__).parents[1] / "models" / "smollm2-eagle3.gguf"
    learned = prior_learned(loaded(shipped))
    assert sum(learned.calibration.seen) > 1000
    assert not caplog.records


def test_without_a_draft_there_is_nothing_to_write_a_prior_for() -> None:
    """Lookup has no file to lie beside."""
    with pytest.raises(ProfileError, match="no draft model"):
        save_prior(loaded(), seen())
