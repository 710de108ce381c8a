"""What decodes took is kept by file, machine and how the file ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspec.store import timed
from pyspec.store.files import recall, remember, stamp
from pyspec.store.timed import forget_times, how, keep_times, kept_times

RUN, TIMES = how(2), {1: 10.0, 4: 21.5}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    return path


def test_what_is_kept_is_there_again(model: Path) -> None:
    """For the same file that runs in the same way; for nothing else."""
    assert kept_times(model, RUN) == {}
    assert keep_times(model, RUN, TIMES)
    assert kept_times(model, RUN) == TIMES
    assert kept_times(model, how(4)) == kept_times(model, how(2, "30 layers on X")) == {}
    model.write_bytes(b"other")
    assert kept_times(model, RUN) == {}


@pytest.mark.parametrize(("ms", "kept"), [(29.0, True), (31.0, False), (1.0, True)])
def test_a_machine_three_times_slower_did_something_else(
    model: Path, ms: float, kept: bool
) -> None:
    """Its times do not replace others; faster ones do, since no machine is fast by chance."""
    keep_times(model, RUN, TIMES)
    assert keep_times(model, RUN, {1: ms}) is kept
    assert kept_times(model, RUN)[1] == (ms if kept else 10.0)


def test_times_without_one_row_say_nothing(model: Path) -> None:
    """They could not be held against others."""
    assert not keep_times(model, RUN, {4: 1.0})
    assert kept_times(model, RUN) == {}


@pytest.mark.parametrize(
    "fact", ["", "[]", '{"1": -1}', '{"1": "x"}', '{"0": 1}', '{"1": 1e9}', "{"]
)
def test_damaged_times_are_none(model: Path, fact: str) -> None:
    remember(timed._kind(RUN), stamp(model), fact)
    assert kept_times(model, RUN) == {}


def test_forgotten_times_are_gone(model: Path) -> None:
    """However the file ran; other facts of it stay."""
    keep_times(model, RUN, TIMES)
    keep_times(model, how(4), TIMES)
    others = {"sha256": "ab", "acceptance": '{"greedy":1}', "gains 1": '{"chat":1.5}'}
    for kind, fact in others.items():
        remember(kind, stamp(model), fact)
    forget_times(model)
    assert kept_times(model, RUN) == kept_times(model, how(4)) == {}
    assert {kind: recall(kind, stamp(model)) for kind in others} == others
