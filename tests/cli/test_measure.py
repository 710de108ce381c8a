"""`pyspec measure`: what drafts gain here, in a sentence."""

import json

import pytest
from helpers import running, scripted

from pyspec.cli.measure import GainFigures


def run(model, *words, **variables):
    how = ("--trust-model", "-t", "1", "-c", "1024")
    return running.run("measure", "-m", model, *how, *words, **variables)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return scripted.write(tmp_path_factory.mktemp("model"))


def test_the_sentence_names_uses_draft_and_temperature():
    gains, how = "1.4 times for edits, 1.0 for chat", "temperature 0 for edits, 0.8 for chat"
    found = GainFigures(1.44, 0.96, "lookup+Llama-3.2-1B", 0.8)
    assert found.sentence == f"here: {gains}; using lookup + Llama-3.2-1B; {how}"


def test_it_is_measured_and_said(model, monkeypatch):
    monkeypatch.setattr("pyspec.cli.measure.Watch.busy", lambda *_: False)
    words = ("-n", "8", "--seconds", "1", "--draft", "lookup")
    done = run(model, *words)
    assert done.stdout.startswith("here: ")
    assert "using lookup; temperature 0 for edits, 0.8 for chat" in done.stdout
    assert done.stderr == ""
    told = json.loads(run(model, *words, "--json").stdout)
    assert told["edits"] > 0
    assert told["draft"] == "lookup"
