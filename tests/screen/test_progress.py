"""What takes a while says so once, and only where somebody looks."""

from __future__ import annotations

import io
from typing import Any

import pytest
from helpers.waiting import wait
from rich.console import Console

from pyspec.screen import display


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    out = io.StringIO()
    made = Console(file=out, force_terminal=True, width=80)
    monkeypatch.setattr(display, "Console", lambda **_: made)
    return out


def test_what_takes_long_is_said(terminal: io.StringIO) -> None:
    """At once, or after some time."""
    with display.busy("loading x", after_s=0.01):
        wait(lambda: "loading x" in terminal.getvalue())


def test_brackets_of_a_name_are_shown(terminal: io.StringIO) -> None:
    """A file may be called so; rich would take them for markup."""
    with display.busy("loading model[bold].gguf"):
        wait(lambda: "loading model[bold].gguf" in terminal.getvalue())


def test_a_notebook_has_it_as_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and only for what takes long."""
    shown: list[str] = []
    notebook = Console(file=io.StringIO(), force_jupyter=True)
    monkeypatch.setattr(notebook, "print", lambda text, **_: shown.append(text))
    monkeypatch.setattr(display, "Console", lambda **_: notebook)
    with display.busy("loading x", after_s=0.01):
        wait(lambda: shown)
    with display.busy("loading y", after_s=60.0):
        pass
    assert shown == ["loading x ..."]


def test_a_notebook_without_widgets_has_lines_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar would need ipywidgets, and rich would warn that they are missing."""
    shown: list[str] = []
    notebook = Console(file=io.StringIO(), force_jupyter=True)
    monkeypatch.setattr(notebook, "print", lambda text, **_: shown.append(text))
    monkeypatch.setattr(display, "Console", lambda **_: notebook)
    monkeypatch.setattr(display, "find_spec", lambda _: None)
    with display.store_progress() as show:
        show("fetching x", 1, 2)
        show("fetching x", 2, 2)
    assert shown == ["fetching x ..."]


def test_what_is_quick_is_not_said(terminal: io.StringIO) -> None:
    """A line that comes and goes only flickers."""
    with display.busy("loading x", after_s=60.0):
        pass
    assert "loading x" not in terminal.getvalue()


def test_one_inside_another_says_nothing(terminal: io.StringIO) -> None:
    with display.busy("outer"), display.busy("inner"):
        pass
    assert "inner" not in terminal.getvalue()


def test_nobody_is_told_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    """Pipes and logs stay clean."""
    with display.busy("loading x"):
        pass
    assert capsys.readouterr().err == ""


def test_a_class_that_fetches_shows_it(
    monkeypatch: pytest.MonkeyPatch, tiny_ascii: Any, capsys: Any
) -> None:
    import pyspec.llama.speculative

    def fetched(_name: str, show: Any, *_place: Any) -> Any:
        show("fetching some-model", 1, 2)
        return tiny_ascii

    monkeypatch.setattr("pyspec.screen.display.resolve", fetched)
    with pyspec.llama.speculative.SpeculativeLlama("some-model", draft="none", n_threads=1):
        assert "fetching some-model ..." in capsys.readouterr().err
