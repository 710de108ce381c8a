"""What is known before the first round: the prior that lies beside a draft."""

import logging
from pathlib import Path

import msgspec
import pytest

from pyspec.draft.acceptance import Acceptance
from pyspec.engine.profiles import Prior, SideFile, hashes_of, prior_learned, read_prior
from pyspec.errors import ProfileError


def taught():
    """A state that has seen the sixth bin accepted often, a useful companion, and matches of lookup."""
    learned = Acceptance()
    for _ in range(200):
        learned.calibration.update(0, 6, True)
        learned.companion.learn((1.0,) * 6, 0.5)
    learned.lookup.update(5, [True] * 8)
    return learned


def prior_path(draft):
    return draft.with_suffix(".prior.json")


def prior_of(draft, companion, learned):
    return Prior(draft, companion, learned.calibration, learned.companion)


def loaded(*paths):
    return [SideFile(path, path.stat().st_size) for path in paths]


@pytest.fixture
def draft(tmp_path):
    """A draft whose prior lies beside it."""
    path = tmp_path / "d.gguf"
    path.write_bytes(b"weights")
    prior = prior_of(hashes_of(loaded(path))[0], "", taught())
    prior_path(path).write_bytes(msgspec.json.encode(prior))
    return path


@pytest.mark.parametrize("companion", ["c", "other"])
def test_a_prior_is_what_was_learned(tmp_path, companion):
    learned, path = taught(), tmp_path / "d.gguf"
    prior_path(path).write_bytes(msgspec.json.encode(prior_of("d", "c", learned)))
    again = read_prior(path).restore("d", companion)
    # the line is fitted when it is read, and else when a tenth more was seen
    assert again.calibration.table == pytest.approx(learned.calibration.table, abs=0.01)
    assert again.calibration == learned.calibration
    assert again.companion == (learned if companion == "c" else Acceptance()).companion
    assert again.lookup == Acceptance().lookup


def test_no_prior_is_none_and_a_damaged_or_anothers_is_refused(tmp_path):
    path = tmp_path / "d.gguf"
    assert read_prior(path) is None
    prior_path(path).write_text("{")
    with pytest.raises(ProfileError, match="damaged"):
        read_prior(path)
    with pytest.raises(ProfileError, match="another draft"):
        prior_of("d", "c", Acceptance()).restore("e", "c")


def test_a_draft_begins_with_its_prior(draft):
    assert prior_learned(loaded(draft)).calibration == taught().calibration
    prior_path(draft).unlink()
    assert prior_learned(loaded(draft)) == prior_learned(loaded()) == Acceptance()


def test_a_prior_that_cannot_be_used_is_a_warning(draft, caplog):
    """Changed weights make it another draft's: one sentence, and everything is learned anew."""
    draft.write_bytes(b"other weights")
    with caplog.at_level(logging.WARNING, "pyspec"):
        assert prior_learned(loaded(draft)) == Acceptance()
    assert "another draft" in caplog.text
    prior_path(draft).write_text("no json")
    assert prior_learned(loaded(draft)) == Acceptance()


def test_the_shipped_head_has_a_prior(caplog):
    """It is of the very file that ships, and says more than nothing."""
    shipped = Path(__file__).parents[2] / "models" / "smollm2-eagle3.gguf"
    learned = prior_learned(loaded(shipped))
    assert sum(learned.calibration.seen) > 1000
    assert not caplog.records
