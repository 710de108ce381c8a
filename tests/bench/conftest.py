"""Scripts of bench/ as modules."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def questions(tmp_path):
    """Writes a file of these questions, in Spec-Bench's format."""

    def write(*texts):
        path = tmp_path / "questions.jsonl"
        asked = [{"question_id": i, "category": "qa", "turns": [t]} for i, t in enumerate(texts)]
        path.write_text("".join(json.dumps(each) + "\n" for each in asked))
        return path

    return write


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


@pytest.fixture
def measuring(tiny_ascii, tmp_path):
    """Words for answers of eight tokens to two questions, whose results go to `out`."""
    questions = tmp_path / "q.jsonl"
    questions.write_text(
        '{"question_id": 1, "category": "a", "turns": ["abc abc abc", "again"]}\n'
        '{"question_id": 2, "category": "b", "turns": ["hello"]}\n'
    )
    more = ["--questions", questions, "--out", tmp_path / "out"]
    return [
        "-m", tiny_ascii, "--draft", "lookup", "--trust-model", "-c", "256", "-t", "1", "-n", "8", "--warm-up", "1", *more,
    ]  # fmt: skip
