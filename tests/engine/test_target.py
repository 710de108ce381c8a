"""How models get into the process: tried first, and without extra weight buffers where those crash."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import amx

from pyspec.batch import Batch
from pyspec.cli.main import main
from pyspec.errors import ModelRejected, OptionError
from pyspec.gguf import check as checks
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.machine import machine
from pyspec.machine.isolate import ChildExit

PLAIN: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "n_threads_batch": 1}


@pytest.fixture(autouse=True)
def fresh_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own and no memory of earlier trials."""
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    machine._session.clear()
    yield
    machine._session.clear()


@pytest.fixture
def amx_crashes(monkeypatch: pytest.MonkeyPatch) -> list[ChildExit]:
    """Children in which extra buffers crash; the list grows by each outcome."""
    outcomes: list[ChildExit] = []
    run = checks.run_child

    def watched(*args: Any, **options: Any) -> ChildExit:
        outcomes.append(run(*args, **options))
        return outcomes[-1]

    monkeypatch.setattr("pyspec.machine.isolate._SCRIPT", Path(amx.__file__).absolute())
    monkeypatch.setattr(checks, "run_child", watched)
    return outcomes


def uses_extra(llm: Any) -> bool:
    """Whether the target was loaded with extra buffers."""
    return bool(llm.model_params.use_extra_bufts)


def test_extra_buffers_that_crash_are_left_off(
    tiny_target: Path,
    tiny_draft: Path,
    amx_crashes: list[ChildExit],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Target, draft and companion answer without them; one sentence says so, and it is known from then on."""
    caplog.set_level(logging.WARNING, "pyspec")
    options = {**PLAIN, "draft": str(tiny_draft), "companion": "none"}
    with SpeculativeLlama(str(tiny_target), **options) as llm:
        assert not uses_extra(llm)
        assert llm.create_completion("abc", max_tokens=4)["usage"]["completion_tokens"] > 0
    assert amx_crashes[0].signal is not None
    assert sum("extra weight buffers" in record.message for record in caplog.records) == 1
    seen = len(amx_crashes)
    with SpeculativeLlama(str(tiny_target), **options) as llm:
        assert not uses_extra(llm)
    assert len(amx_crashes) == seen


def test_what_was_found_holds_for_other_files(
    tiny_target: Path,
    tiny_draft: Path,
    amx_crashes: list[ChildExit],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine is remembered, not the file: another one is tried without extra buffers only, in a new process too."""
    checks.check_model(tiny_target)
    machine._session.clear()
    del amx_crashes[:]
    assert checks.check_model(tiny_draft) is False
    assert [outcome.ok for outcome in amx_crashes] == [True]


def test_drafts_follow(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft is loaded with the buffers that its target was given."""
    from pyspec.engine import models

    seen = []

    class Watched(models._Loading):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            seen.append(self.params)

    monkeypatch.setattr(models, "_Loading", Watched)
    for word in ("on", "off"):
        options = {**PLAIN, "draft": str(tiny_draft), "trust": True, "extra_buffers": word}
        SpeculativeLlama(str(tiny_target), companion="none", **options).close()
    assert [params.use_extra_bufts for params in seen] == [True, False]


@pytest.mark.parametrize(("word", "used"), [("on", True), ("off", False), ("auto", True)])
@pytest.mark.parametrize("make", [SpeculativeLlama, Batch])
def test_the_option_reaches_the_load(
    make: Callable[..., Any],
    word: str,
    used: bool,
    tiny_target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`extra_buffers` decides what llama.cpp is told, for one sequence and for many."""
    monkeypatch.setattr(checks, "has_amx", lambda: False)
    options = {"draft": "none", "companion": "none", "trust": True, "n_threads": 1}
    with make(str(tiny_target), n_ctx=128, extra_buffers=word, **options) as made:
        assert uses_extra(made._models.target if make is Batch else made) is used


def test_another_word_is_refused(tiny_target: Path) -> None:
    with pytest.raises(OptionError, match="extra_buffers"):
        SpeculativeLlama(str(tiny_target), extra_buffers="perhaps")


def test_asked_for_they_are_tried_and_refused(
    tiny_target: Path, amx_crashes: list[ChildExit]
) -> None:
    """With "on" there is no way round: the trial dies, and this process does not."""
    with pytest.raises(ModelRejected, match="SIGABRT"):
        checks.check_model(tiny_target, loading=checks.Loading(extra_buffers="on"))


def test_a_processor_with_amx_is_tried_once_for_trusted_files(
    tiny_target: Path, amx_crashes: list[ChildExit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trial of the file, but one of the machine with a shipped model."""
    monkeypatch.setattr(checks, "has_amx", lambda: True)
    assert checks.check_model(tiny_target, trust=True) is False
    assert len(amx_crashes) == 2
    assert checks.check_model(tiny_target, trust=True) is False
    assert len(amx_crashes) == 2


def test_a_good_processor_with_amx_keeps_them(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "has_amx", lambda: True)
    monkeypatch.setattr(checks, "run_child", lambda *_, **__: ChildExit(""))
    assert checks.check_model(tiny_target, trust=True) is True


def test_one_bad_file_does_not_blame_the_machine(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that crashes with them alone is loaded without, while a shipped model shows that they work."""
    bad = Path(shutil.copy(tiny_target, tmp_path / "bad.gguf"))

    def bad_dies(_script: str, arguments: list[str], **_options: Any) -> ChildExit:
        dies = "bad.gguf" in arguments[0] and '"extra_buffers": true' in arguments[2]
        return ChildExit("", signal=11 if dies else None)

    monkeypatch.setattr(checks, "has_amx", lambda: False)
    monkeypatch.setattr(checks, "run_child", bad_dies)
    assert checks.check_model(bad) is False
    assert machine.extra_buffers_known("auto") is None
    assert checks.check_model(bad) is False
    assert checks.check_model(tiny_target) is True


def test_the_command_answers_and_info_says_why(
    tiny_ascii: Path, amx_crashes: list[ChildExit], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command of a machine like that answers; `pyspec info` shows what was found."""
    command = ["generate", "abc", "-m", str(tiny_ascii), "--draft", "none", "-n", "4", "-t", "1"]
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code == 0
    with pytest.raises(SystemExit):
        main(["info"])
    assert "off: llama.cpp crashes" in capsys.readouterr().out
