"""`pyspec draft`: what goes with a model, and the command to run."""

import json
import shlex

import msgspec
import pytest
from click.testing import CliRunner
from helpers import running, tiny
from helpers.own_cache import home
from helpers.programs import named

from pyspec.cli.models import draft
from pyspec.errors import ModelInvalid, UnsupportedModel
from pyspec.gguf.header import facts_of
from pyspec.hub.sources import Family, FamilyDraft, load_manifest

__all__ = ["home"]


@pytest.fixture
def pair(home, monkeypatch):
    monkeypatch.setenv("PYSPEC_CACHE", str(home / "cache"))
    made = []
    for name, layers in (("target", 8), ("small", 1)):
        made.append(named(tiny.write(home / f"{name}.gguf", n_layer=layers, tokens=tiny.ASCII)))
    return made


def run(*arguments):
    return CliRunner().invoke(draft, ["-m", *arguments])


@pytest.mark.usefixtures("pair")
def test_the_draft_and_the_command():
    result = run("target")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[0] == "small"
    used, command = result.stdout.splitlines()[-2:]
    assert used == "--draft auto, the default, uses small"
    assert command == "use: pyspec chat -m target"
    _, *words = shlex.split(command.removeprefix("use: "))
    done = running.run(*words, "-c", "128", stdin=b"")  # it works as it stands
    assert done.returncode == 0, done.stderr
    alone = run("small").stdout
    assert "no draft is known for this model" in alone
    assert alone.splitlines()[-1] == "use: pyspec chat -m small"


@pytest.fixture
def fetchable(pair, monkeypatch):
    facts = facts_of(pair[0])
    draft = FamilyDraft("owner/small-GGUF:Q8_0", 1000, "MIT")
    family = Family("Tiny", ("llama",), (facts.n_vocab,), (draft,), {}, (facts.vocabulary.upto,))
    manifest = msgspec.structs.replace(load_manifest(), family=(family,))
    monkeypatch.setattr("pyspec.hub.drafts.load_manifest", lambda: manifest)
    return draft


@pytest.mark.parametrize("known", [True, False])
def test_a_large_one_is_not_used_unmeasured(request, pair, known):
    """It is listed; its steps cost nearly as much as the target's. A small one to fetch goes before it, if one is known."""
    tiny.write(pair[1], n_layer=7, tokens=tiny.ASCII)
    if known:
        request.getfixturevalue("fetchable")
    _, first, *_, used, command = run("target").stdout.splitlines()
    assert first.split()[0] == "small"
    assert used == "--draft auto, the default, uses lookup alone"
    wanted = "models pull owner/small-GGUF:Q8_0" if known else "chat -m target"
    assert command == f"use: pyspec {wanted}"


def test_what_was_fetched_is_not_to_fetch(pair, fetchable, tmp_path):
    folder = tmp_path / "cache/models"
    folder.mkdir(parents=True, exist_ok=True)
    pair[1].rename(folder / f"owner--small-GGUF--{'f' * 40}--small-Q8_0.gguf")
    (row,) = json.loads(run("target", "--json").stdout)
    assert (row["name"], row["origin"]) == (fetchable.model, "pyspec")


@pytest.mark.usefixtures("pair")
def test_its_own_head_is_what_auto_takes(tmp_path):
    named(tiny.write(tmp_path / "headed.gguf", arch="qwen35", n_heads=1, tokens=tiny.ASCII))
    (row, *_) = json.loads(run("headed", "--json").stdout)
    assert (row["name"], row["origin"], row["note"]) == ("mtp", "in its file", "next-token head")
    assert run("headed").stdout.splitlines()[-2:] == [
        "--draft auto, the default, uses mtp, its own head",
        "use: pyspec chat -m headed",
    ]


@pytest.mark.usefixtures("pair")
def test_what_decodes_plainly_has_no_draft(tmp_path):
    named(tiny.write(tmp_path / "recurrent.gguf", arch="mamba", n_layer=8, tokens=tiny.ASCII))
    assert json.loads(run("recurrent", "--json").stdout) == []
    assert run("recurrent").stdout.splitlines() == [
        "llama.cpp keeps no states of mamba models to go back to: they decode plainly",
        "--draft auto, the default, decodes plainly",
        "use: pyspec chat -m recurrent",
    ]


def test_heads_without_a_graph_are_named(pair, monkeypatch):
    headed = msgspec.structs.replace(facts_of(pair[0]), heads=1, architecture="exaone4")
    monkeypatch.setattr("pyspec.gguf.kinds.facts_of", lambda _path: headed)
    sentence = "its next-token head (MTP) stays unused: this llama.cpp has no graph for it in exaone4 models"
    assert sentence in run("target").stdout.splitlines()


def test_shipped_drafts_come_first_and_once(smollm2):
    rows = [row["name"] for row in json.loads(run(smollm2, "--json").stdout)]
    assert rows[0] == "smollm2-eagle3"
    assert len(set(rows)) == len(rows)


def test_a_model_in_another_type_is_no_draft_for_itself(tmp_path, monkeypatch, pair):
    """Nearly as large, of the same name."""
    named(tiny.write(tmp_path / "again.gguf", n_layer=7, tokens=tiny.ASCII))
    assert [row["name"] for row in json.loads(run("target", "--json").stdout)] == ["small", "again"]

    def called(path):
        facts = facts_of(path)
        return msgspec.structs.replace(facts, name="Tiny") if facts else None

    monkeypatch.setattr("pyspec.hub.drafts.facts_of", called)
    assert [row["name"] for row in json.loads(run("target", "--json").stdout)] == ["small"]


@pytest.mark.usefixtures("pair")
def test_a_file_that_is_no_model_or_answers_nothing_is_refused(tmp_path):
    """As `pyspec chat` refuses it, to which this command would send the user."""
    (tmp_path / "text.gguf").write_text("no model")
    assert isinstance(run(str(tmp_path / "text.gguf")).exception, ModelInvalid)
    assert isinstance(run("smollm2-eagle3").exception, UnsupportedModel)
