"""What is known before the first round: `pyspec.engine.profiles`, and the files it lies in."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from pyspec.draft.acceptance import Acceptance
from pyspec.engine.profiles import (
    Prior,
    SideFile,
    hashes_of,
    prior_learned,
    read_prior,
)
from pyspec.errors import ProfileError


def taught() -> Acceptance:
    """A state that has seen the sixth bin accepted often, and a useful companion."""
    learned = Acceptance()
    for _ in range(200):
        learned.calibration.update(0, 6, True)
        learned.companion.learn((1.0,) * 6, 0.5)
    return learned


def prior_path(draft: Path) -> Path:
    return draft.with_suffix(".prior.json")


def prior_of(draft: str, companion: str, learned: Acceptance) -> Prior:
    return Prior(draft, companion, learned.calibration, learned.companion)


def test_a_prior_is_what_was_learned(tmp_path) -> None:
    """Read from the file beside the draft, it predicts as the state that was written."""
    learned = taught()
    draft = tmp_path / "d.gguf"
    prior_path(draft).write_bytes(msgspec.json.encode(prior_of("d", "c", learned)))
    again = read_prior(draft).restore("d", "c")
    # the line is fitted when it is read, and else when a tenth more was seen
    assert again.calibration.table == pytest.approx(learned.calibration.table, abs=0.01)
    assert again == learned


def test_a_prior_knows_nothing_of_lookup() -> None:
    """How often matches are right belongs to the texts, not to the draft."""
    learned = taught()
    learned.lookup.update(5, [True] * 8)
    again = prior_of("d", "c", learned).restore("d", "c")
    assert again.lookup == Acceptance().lookup


def test_a_prior_for_another_companion_keeps_the_draft_s_part() -> None:
    again = prior_of("d", "c", taught()).restore("d", "other")
    assert again.calibration.table == pytest.approx(taught().calibration.table)
    assert again.companion == Acceptance().companion


def test_a_prior_for_another_draft_is_refused() -> None:
    with pytest.raises(ProfileError, match="another draft"):
        prior_of("d", "c", Acceptance()).restore("e", "c")


def test_no_prior_is_none_and_a_damaged_one_is_refused(tmp_path) -> None:
    draft = tmp_path / "d.gguf"
    assert read_prior(draft) is None
    prior_path(draft).write_text("{")
    with pytest.raises(ProfileError, match="damaged"):
        read_prior(draft)


def loaded(*paths) -> list[SideFile]:
    """Files as loaded models, draft first."""
    return [SideFile(path, path.stat().st_size) for path in paths]


@pytest.fixture
def draft(tmp_path):
    path = tmp_path / "d.gguf"
    path.write_bytes(b"weights")
    return path


def seen() -> Acceptance:
    learned = Acceptance()
    for _ in range(50):
        learned.calibration.update(0, 3, True)
    return learned


def write_prior(draft: Path, learned: Acceptance) -> None:
    prior = prior_of(hashes_of(loaded(draft))[0], "", learned)
    prior_path(draft).write_bytes(msgspec.json.encode(prior))


def test_a_draft_begins_with_its_prior(draft) -> None:
    write_prior(draft, seen())
    assert prior_learned(loaded(draft)) == seen()


def test_a_draft_without_a_prior_begins_with_nothing(draft) -> None:
    assert prior_learned(loaded(draft)) == Acceptance()
    assert prior_learned(loaded()) == Acceptance()


def test_a_prior_that_cannot_be_used_is_a_warning(draft, caplog) -> None:
    """Changed weights make it another draft's: one sentence, and everything is learned anew."""
    write_prior(draft, seen())
    draft.write_bytes(b"other weights")
    with caplog.at_level(logging.WARNING, "pyspec"):
        assert prior_learned(loaded(draft)) == Acceptance()
    assert "another draft" in caplog.text
    prior_path(draft).write_text("no json")
    assert prior_learned(loaded(draft)) == Acceptance()


def test_the_shipped_head_has_a_prior(caplog) -> None:
    """It is of the very file that ships, and says more than nothing."""
    shipped = Path(__file__).parents[2] / "models" / "smollm2-eagle3.gguf"
    learned = prior_learned(loaded(shipped))
    assert sum(learned.calibration.seen) > 1000
    assert not caplog.records
