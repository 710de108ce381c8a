"""Scripts of bench/ as modules."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.running import popen, run_python

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def questions(tmp_path):
    """Two short ones, in Spec-Bench's format."""
    path = tmp_path / "questions.jsonl"
    line = '{"question_id": %d, "category": "qa", "turns": ["%s"]}\n'
    path.write_text("".join(line % (i, text) for i, text in enumerate(("abc", "cab"))))
    return path


@pytest.fixture
def in_forks(monkeypatch):
    """What scripts start in interpreters of their own runs in forks, which are a fraction of their time."""
    with ExitStack() as ends:
        monkeypatch.setattr(subprocess, "run", run_python)
        monkeypatch.setattr(
            subprocess, "Popen", lambda *words, **how: ends.enter_context(popen(*words, **how))
        )
        yield


@pytest.fixture
def script(monkeypatch):
    """Import a script by its name; scripts find each other as they do when started."""
    monkeypatch.syspath_prepend(str(BENCH))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load
