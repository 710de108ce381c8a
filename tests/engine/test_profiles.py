"""What is known before the first round: the prior that lies beside a draft."""

from pathlib import Path

import msgspec
import pytest

from pyspec.draft.acceptance import Acceptance
from pyspec.engine.profiles import Prior, SideFile, hashes_of, prior_learned


@pytest.fixture
def pair(tmp_path):
    """A draft and a companion, and what both learned, which lies beside the draft."""
    files = [tmp_path / "d.gguf", tmp_path / "c.gguf"]
    for path in files:
        path.write_bytes(path.name.encode())
    sides, learned = [SideFile(path, 1) for path in files], Acceptance()
    for _ in range(200):
        learned.calibration.update(0, 6, True)
        learned.companion.learn((1.0,) * 6, 0.5)
    learned.lookup.update(5, [True] * 8)
    prior = Prior(*hashes_of(sides), learned.calibration, learned.companion)
    files[0].with_suffix(".prior.json").write_bytes(msgspec.json.encode(prior))
    return sides, learned


def test_a_draft_begins_with_its_prior(pair):
    """What was learned of lookup is no property of the draft, nor what the scores of another companion tell."""
    sides, learned = pair
    again, fresh = prior_learned(sides), Acceptance()
    # the line is fitted when it is read, and else when a tenth more was seen
    assert again.calibration.table == pytest.approx(learned.calibration.table, abs=0.01)
    assert (again.calibration, again.companion) == (learned.calibration, learned.companion)
    assert again.lookup == fresh.lookup
    assert prior_learned(sides[:1]).companion == fresh.companion
    assert prior_learned([]) == fresh


@pytest.mark.parametrize(("spoil", "says"), [
    (lambda path: path.write_bytes(b"other weights"), "another draft"),
    (lambda path: path.with_suffix(".prior.json").write_text("{"), "is damaged"),
    (lambda path: path.with_suffix(".prior.json").unlink(), ""),
])  # fmt: skip
def test_a_prior_that_cannot_be_used_is_a_warning(pair, caplog, spoil, says):
    """Changed weights make it another draft's: one sentence, and everything is learned anew."""
    sides, _ = pair
    spoil(sides[0].path)
    assert prior_learned(sides) == Acceptance()
    assert says in caplog.text
    assert bool(caplog.messages) is bool(says)


def test_the_shipped_head_has_a_prior(caplog):
    """It is of the very file that ships, and says more than nothing."""
    shipped = Path(__file__).parents[2] / "models" / "smollm2-eagle3.gguf"
    assert sum(prior_learned([SideFile(shipped, 1)]).calibration.seen) > 1000
    assert not caplog.records
