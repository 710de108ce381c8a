"""Chat models by short names: found, fetched with their drafts, and used."""

import json

import pytest
from cli.test_models import run
from helpers.hub_server import serving
from hub.test_sources import TINY, pyspec

from pyspec.errors import ModelNotFound
from pyspec.hub.locate import resolve
from pyspec.hub.sources import find_chat, hub_repo, load_manifest, search


def test_a_name_means_its_first_size():
    assert find_chat("qwen3") == find_chat("Qwen3:4B") == find_chat("qwen3:latest")
    assert find_chat("qwen3:5b") is None
    assert find_chat("nothing") is None


def test_all_words_have_to_be_there():
    assert [each.full for each in search(["GEMMA", "12b"])] == ["gemma3:12b"]
    assert [each.full for each in search(["coder"])] == ["qwen2.5-coder:7b"]
    assert search([]) == list(load_manifest().chat)
    assert search(["gemma", "qwen"]) == []


def test_what_is_listed_can_be_fetched():
    models = load_manifest().chat
    assert len({each.full for each in models}) == len(models) >= 12
    drafts = {each.model for family in load_manifest().family for each in family.drafts}
    assert {each.draft for each in models if each.draft} <= drafts
    assert all(hub_repo(each.model) for each in models)
    assert all(each.size < each.memory < 1.9 * each.size for each in models)


FILES = {
    "Qwen/Qwen3-4B-GGUF": {"Qwen3-4B-Q4_K_M.gguf": TINY},
    "Qwen/Qwen3-0.6B-GGUF": {"Qwen3-0.6B-Q8_0.gguf": TINY},
}


@pytest.fixture
def hub():
    with serving(FILES) as server:
        yield server


def test_a_model_is_fetched_once_and_its_draft_where_that_is_asked_for(hub, tmp_path):
    first = pyspec(hub, tmp_path, "pull", "qwen3")
    said = first.stderr.splitlines()
    assert said[0] == "qwen3:4b: Qwen/Qwen3-4B-GGUF:Q4_K_M, 2.50 GB, Apache-2.0"
    again = pyspec(hub, tmp_path, "pull", "qwen3", HF_ENDPOINT="http://127.0.0.1:9")
    assert again.stdout == first.stdout
    here, draft, after = again.stderr.splitlines()
    assert here == "qwen3:4b is here already, as Qwen/Qwen3-4B-GGUF:Q4_K_M"
    assert draft == said[-2] == "`pyspec models pull Qwen/Qwen3-0.6B-GGUF:Q8_0` fetches its draft"
    assert after == said[-1] == "next: `pyspec chat -m qwen3:4b`"
    assert "Qwen3-0.6B" not in pyspec(hub, tmp_path, "list", "--here").stdout
    pyspec(hub, tmp_path, "pull", "qwen3", "--draft")
    here = pyspec(hub, tmp_path, "list", "--here").stdout
    assert "Qwen/Qwen3-4B-GGUF:Q4_K_M" in here
    assert "Qwen/Qwen3-0.6B-GGUF:Q8_0" in here


def test_what_is_not_here_says_how_to_get_it():
    with pytest.raises(ModelNotFound) as caught:
        resolve("qwen3:8b")
    assert caught.value.hint == "fetch it with `pyspec models pull qwen3:8b` (5.03 GB)"


def test_a_search_lists_sizes_and_drafts():
    table = run("search", "llama", "8b").stdout.splitlines()
    assert table[1].split()[:3] == ["llama3.1:8b", "4.92", "5.50"]
    told = json.loads(run("search", "llama", "8b", "--json").stdout)
    assert [each["name"] for each in told["models"]] == ["llama3.1:8b"]
    assert run("search", "no such words").returncode == 1
