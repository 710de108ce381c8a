"""What takes a while says so once, and only where somebody looks."""

import io

import pytest
from helpers.waiting import wait
from rich.console import Console

from pyspec.screen import progress


@pytest.fixture(params=[{"force_terminal": True}, {"force_jupyter": True}, {}])
def console(request, monkeypatch):
    made = Console(file=io.StringIO(), width=80, **request.param)
    monkeypatch.setattr(progress, "Console", lambda **_: made)
    return made


def shown(console):
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_alone_is_told_what_takes_long(console):
    """Brackets of a name are shown, which rich would take for markup; pipes, logs and notebooks stay clean."""
    with progress.busy("loading model[bold].gguf"):
        if console.is_terminal:
            wait(lambda: "loading model[bold].gguf" in shown(console))
    assert console.is_terminal or shown(console) == ""


@pytest.mark.parametrize("console", [{}], indirect=True)
def test_what_is_fetched_is_a_line(console):
    with progress.store_progress() as show:
        show("fetching x", 1, 2)
        show("fetching x", 2, 2)
    assert shown(console) == "fetching x ...\n"


def test_progress_of_unknown_length_has_no_count(monkeypatch):
    """`0/0` says nothing; what is done does."""
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    out = io.StringIO()
    with progress.run_progress(Console(file=out, width=80)) as show:
        show(0, 0, "loading")
        show(1, 4, "answers")
    assert out.getvalue().splitlines() == ["loading", "1/4 answers"]


def test_a_class_that_fetches_shows_it(monkeypatch, tiny_ascii, capsys):
    import pyspec.llama.speculative

    def fetched(_name, show, *_place):
        show("fetching some-model", 1, 2)
        return tiny_ascii

    monkeypatch.setattr("pyspec.screen.progress.resolve", fetched)
    with pyspec.llama.speculative.SpeculativeLlama("some-model", draft="none", n_threads=1):
        assert "fetching some-model ..." in capsys.readouterr().err
