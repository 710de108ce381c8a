"""What is known before the first round: `pyspec.engine.profiles`, and the files it lies in."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import msgspec
import pytest

from pyspec.engine.profiles import (
    Prior,
    Profile,
    ProfileKey,
    SideFile,
    disagreement,
    prior_learned,
    prior_path,
    profile_path,
    read_prior,
    read_profile,
    save_prior,
    save_profile,
)
from pyspec.errors import ProfileError
from pyspec.policy.acceptance import Acceptance
from pyspec.policy.cost import CostCurve

KEY = ProfileKey("t" * 64, "d" * 64, "", "cpu", 2, "0.1")


@pytest.fixture
def profile() -> Profile:
    return Profile(KEY, CostCurve.prior().state(), Acceptance())


def test_a_saved_profile_is_loaded_equal(tmp_path, profile) -> None:
    """Save and load are inverse, and policies can be made from it."""
    save_profile(profile, tmp_path / "new")
    again = read_profile(tmp_path / "new", KEY)
    assert again == profile
    curve = CostCurve.restore(again.curve)
    assert curve.target.table() == pytest.approx(CostCurve.prior().target.table())


def test_no_profile_is_none(tmp_path) -> None:
    assert read_profile(tmp_path, KEY) is None


def test_only_the_finished_file_remains(tmp_path, profile) -> None:
    """Writing goes through a temporary file that does not stay."""
    save_profile(profile, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [profile_path(tmp_path, KEY).name]


@pytest.mark.parametrize("cut", [0, 1, 10, 1000, -1])
def test_a_truncated_profile_is_refused(tmp_path, profile, cut: int) -> None:
    """A file cut anywhere is a ProfileError of one sentence."""
    path = save_profile(profile, tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ProfileError, match="damaged"):
        read_profile(tmp_path, KEY)


@pytest.mark.parametrize("junk", [b"null", b"\xff\xfe", b"[" * 100_000, b'{"key": 1}'])
def test_junk_is_refused(tmp_path, junk: bytes) -> None:
    """Anything that is not a profile is a ProfileError, deep nesting included."""
    profile_path(tmp_path, KEY).write_bytes(junk)
    with pytest.raises(ProfileError):
        read_profile(tmp_path, KEY)


@pytest.mark.parametrize("field", ["target", "draft", "companion", "backend", "threads", "version"])
def test_a_foreign_profile_is_refused(tmp_path, profile, field: str) -> None:
    """A file of another model, machine or version under this name is not believed."""
    other = msgspec.structs.replace(KEY, **{field: 9 if field == "threads" else "other"})
    foreign = msgspec.structs.replace(profile, key=other)
    profile_path(tmp_path, KEY).write_bytes(msgspec.json.encode(foreign))
    with pytest.raises(ProfileError, match="belongs to"):
        read_profile(tmp_path, KEY)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 1),
        (("curve", "target", "bases", 0, 3), -1.0),
        (("curve", "draft", "bases"), []),
        (("learned", "companion", "weights", 0), 4000.0),
        (("learned", "lookup", "recent"), 7.0),
    ],
)
def test_planted_damage_is_refused(tmp_path, profile, path, value) -> None:
    """Each contradiction inside a well-formed file is a ProfileError."""
    data = json.loads(msgspec.json.encode(profile))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    profile_path(tmp_path, KEY).write_text(json.dumps(data))
    with pytest.raises(ProfileError):
        read_profile(tmp_path, KEY)


def test_a_directory_or_a_huge_file_is_refused(tmp_path) -> None:
    """What lies at the path must be a file of sane size."""
    profile_path(tmp_path, KEY).mkdir()
    with pytest.raises(ProfileError, match="not a profile"):
        read_profile(tmp_path, KEY)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, profile) -> None:
    """A file in the folder's place is a ProfileError that says so."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="cannot be written"):
        save_profile(profile, tmp_path / "file")


def taught() -> Acceptance:
    """A state that has seen the sixth bin accepted often, and a useful companion."""
    learned = Acceptance()
    for _ in range(200):
        learned.calibration.update(0, 6, True)
        learned.companion.learn((1.0,) * 6, 0.5)
    return learned


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


def test_a_draft_begins_with_its_prior(draft) -> None:
    save_prior(loaded(draft), seen())
    assert prior_learned(loaded(draft)) == seen()


def test_a_draft_without_a_prior_begins_with_nothing(draft) -> None:
    assert prior_learned(loaded(draft)) == Acceptance()
    assert prior_learned(loaded()) == Acceptance()


def test_a_prior_that_cannot_be_used_is_a_warning(draft, caplog) -> None:
    """Changed weights make it another draft's: one sentence, and everything is learned anew."""
    save_prior(loaded(draft), seen())
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


def test_without_a_draft_there_is_nothing_to_write_a_prior_for() -> None:
    """Lookup has no file to lie beside."""
    with pytest.raises(ProfileError, match="no draft model"):
        save_prior(loaded(), seen())


@pytest.mark.parametrize(
    ("change", "times"), [((1.0, 1.0, 1.0), 1.0), ((4.0, 1.0, 1.0), 4.0), ((1.0, 1.0, 0.2), 5.0), ((1.0, 6.0, 1.0), 6.0)],
)  # fmt: skip
def test_measurements_that_are_apart(change: tuple[float, float, float], times: float) -> None:
    """In a row of the target, in eight against one, or in a draft's step against a row."""
    one, more, step = change

    def state(one: float = 1.0, more: float = 1.0, step: float = 1.0):
        rows = [
            0.0,
            one,
            *(one * (2.0 + 0.1 * n) for n in range(6)),
            3.0 * one * more,
            *([9.0 * one] * 8),
        ]
        return CostCurve.from_tables({0: rows}, [0.0, *([0.2 * one * step] * 16)], rows).state()

    assert disagreement(state(one, more, step), state()) == pytest.approx(times, rel=0.02)
