"""`pyspec profile`, as a user calls it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from time import process_time
from types import SimpleNamespace

import pytest
from helpers.running import Done, run
from measure.rounds import load_rounds

from pyspec.cli.options import ModelOptions
from pyspec.cli.profile import next_command
from pyspec.errors import OptionError
from pyspec.profiling.pictures import can_draw


@pytest.fixture
def profile(tiny_ascii: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Calls the command with a tiny pair and a cache of its own, for a second of this process's own time."""
    for name in ("profile", "costs"):
        monkeypatch.setattr(f"pyspec.profiling.{name}.perf_counter", process_time)
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question_id": 1, "category": "a", "turns": ["abc abc"]}\n')

    def call(*more: object) -> Done:
        return run(
            "profile", "-m", tiny_ascii, "--draft", tiny_ascii, "--trust-model", "-c", 256, "-t", 1, "-n", 12,
            "--draft-max", 3, "--seconds", 1, "--questions", questions, *more,
        )  # fmt: skip

    return call


def test_tables_name_the_break_even_and_the_best_plan(profile, tmp_path: Path) -> None:
    """Costs by rows, acceptance by position, and the profile is stored."""
    done = profile()
    assert done.returncode == 0, done.stderr
    for words in (
        "ms of a decode",
        "break-even acceptance",
        "best fixed plan",
        "the draft: ",
        "\nuse: pyspec generate",
    ):
        assert words in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("the draft: "))
    assert line.endswith(" of the time")  # what is piped is not folded
    stored = [*(tmp_path / "cache").glob("profiles/*.json")]
    busy = "not stored: meanwhile other programs used" in done.stderr  # while these tests ran
    assert [path.name in done.stderr for path in stored] == ([] if busy else [True])


@pytest.mark.parametrize(
    ("others", "times", "says"),
    [(0.0, "", "profile stored: p.json"), (1.2, "", "not stored: meanwhile other programs used 1.2 processors"),
     (0.0, "5.7 times as fast", "if that does not help, run `pyspec profile --forget -m '/x/my target.gguf'`")],
)  # fmt: skip
def test_a_disturbed_measurement_is_not_stored(
    others: float, times: str, says: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Nor one that cannot be of the machine of the last one; what to do is said."""
    module = importlib.import_module("pyspec.cli.profile")
    monkeypatch.setattr(module, "apart", lambda *_: times)
    monkeypatch.setattr(module, "store", lambda *_: Path("p.json"))
    found = SimpleNamespace(figures=SimpleNamespace(warnings=[]))
    llm = SimpleNamespace(model_path="/x/my target.gguf")
    module._keep(llm, found, module.ProfileOptions(), others)
    assert says in capsys.readouterr().err


def test_forget_needs_no_measurement(profile) -> None:
    done = profile("--forget")
    assert done.returncode == 0
    assert "0 profiles removed" in done.stderr
    assert done.stdout == ""


def test_json_is_one_object_and_nothing_is_stored_unasked(profile, tmp_path: Path) -> None:
    """A draft that is the target itself is always right."""
    done = profile("--json", "--no-save", "--rounds", tmp_path / "rounds.gz")
    figures = json.loads(done.stdout)
    assert figures["acceptance"] == [1.0, 1.0, 1.0]
    assert len(next(iter(figures["target_ms"].values()))) == 4
    assert not (tmp_path / "cache" / "profiles").exists()
    (answer,) = load_rounds(tmp_path / "rounds.gz")
    assert {chain.n - chain.matched for chain in answer.models.values()} == {0}
    assert len(answer.draft_file) == 64


def test_without_a_draft_the_target_is_measured_alone(profile) -> None:
    """Costs, no acceptance, and not speculating is the plan."""
    done = profile("--draft", "none", "--json", "--no-save")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["acceptance"] == []
    assert figures["best_plan"] == "do not speculate"
    assert figures["draft_step_ms"] == 0.0


def test_a_matplotlib_that_does_not_load_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was built for another numpy: found out before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not can_draw()


def test_a_plot_that_cannot_be_drawn_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib nothing is measured, nor is a model opened."""
    module = importlib.import_module("pyspec.cli.profile")
    monkeypatch.setattr(module, "can_draw", lambda: False)
    monkeypatch.setattr(module, "open_model", lambda *_: pytest.fail("opened"))
    with pytest.raises(OptionError, match="matplotlib"):
        module.profile.main(["--plot", "p.svg"], standalone_mode=False)


@pytest.mark.parametrize(
    ("auto", "lookup_share", "wanted"),
    [
        (1.3, 0.0, "pyspec generate -m 'my target' --draft small ..."),
        (0.9, 0.2, "pyspec generate -m 'my target' --draft lookup ..."),
        (0.9, 0.0, "pyspec generate -m 'my target' --draft none ..."),
    ],
)
def test_the_report_ends_in_the_command_to_use(
    auto: float, lookup_share: float, wanted: str
) -> None:
    found = SimpleNamespace(acceptance=[0.5], auto=auto, lookup_share=lookup_share)
    assert next_command(found, ModelOptions("my target", "small")) == wanted


def test_plot_is_saved(profile, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert profile("--plot", tmp_path / "p.svg", "--no-save").returncode == 0
    assert b"<svg" in (tmp_path / "p.svg").read_bytes()


def test_types_are_measured_of_known_models_only(profile) -> None:
    """For a file of the user's own a sentence that names them, and what to do instead."""
    done = profile("--types")
    assert done.returncode == 2
    assert "--types works for smollm2-135m-instruct" in done.stderr
    assert "pyspec measure" in done.stderr
    assert "Traceback" not in done.stderr
