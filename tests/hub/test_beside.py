"""Drafts that lie with their model, in every place where programs keep both together."""

from __future__ import annotations

import hashlib
import json

import pytest
from helpers import tiny, tiny_eagle

from pyspec.hub.drafts import drafts_here
from pyspec.hub.locate import add

pytestmark = pytest.mark.usefixtures("home")


def put(path, raw):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def ollama(home, target, draft):
    """A manifest with a draft beside the model, after one of the same weights without it."""
    root, layers = home / ".ollama/models", []
    for kind, raw in (("model", target), ("draft", draft)):
        digest = hashlib.sha256(raw).hexdigest()
        put(root / f"blobs/sha256-{digest}", raw)
        media = f"application/vnd.ollama.image.{kind}"
        layers.append({"mediaType": media, "digest": f"sha256:{digest}"})
    for tag, held in (("8b", layers[:1]), ("8b-fast", layers)):
        manifest = root / "manifests/registry.ollama.ai/library/toy" / tag
        put(manifest, json.dumps({"layers": held}).encode())
    return root / "blobs" / layers[0]["digest"].replace(":", "-")


def hugging_face(home, target, draft):
    folder = home / ".cache/huggingface/hub/models--maker--toy-8b-GGUF"
    snapshot = folder / "snapshots" / ("f" * 40)
    snapshot.mkdir(parents=True)
    for name, raw in (("toy-8b-Q4_K_M.gguf", target), ("eagle3-toy-Q8_0.gguf", draft)):
        blob = put(folder / "blobs" / hashlib.sha256(raw).hexdigest(), raw)
        (snapshot / name).symlink_to(blob)
    return snapshot / "toy-8b-Q4_K_M.gguf"


def lm_studio(home, target, draft):
    folder = home / ".lmstudio/models/maker/toy-8b-GGUF"
    put(folder / "toy-draft.gguf", draft)
    return put(folder / "toy-8b-Q4_K_M.gguf", target)


def llama_cpp(home, target, draft):
    folder = home / ".cache/llama.cpp"
    put(folder / "manifest=maker=toy-8b-GGUF=Q4_K_M.json", b"{}")
    put(folder / "manifest=other=old-GGUF=Q4_K_M.json", b"{}")
    put(folder / "other_old-GGUF_old-eagle3.gguf", draft + b"\0" * 32)
    put(folder / "maker_toy-8b-GGUF_toy-eagle3.gguf", draft)
    return put(folder / "maker_toy-8b-GGUF_toy-8b-Q4_K_M.gguf", target)


@pytest.mark.parametrize("place", [ollama, hugging_face, lm_studio, llama_cpp])
def test_a_draft_of_the_same_repository(home, place):
    """It is what `auto` tries, once, and nothing of another repository."""
    target = tiny.write(home / "t.gguf", n_layer=40).read_bytes()
    draft = tiny_eagle.write(home / "d.gguf").read_bytes()
    found = list(drafts_here(place(home, target, draft)))
    assert [each.path.read_bytes() == draft for each in found] == [True]


def test_a_draft_beside_its_model_goes_before_smaller_ones(home, monkeypatch):
    """Also where it fits as any model here does, and then it is tried once."""
    target = put(home / "mine/toy.gguf", tiny.write(home / "t.gguf", n_layer=40).read_bytes())
    add(
        put(home / "mine/toy-draft.gguf", tiny.write(home / "d.gguf", n_layer=2).read_bytes()),
        "near",
    )
    add(tiny.write(home / "smaller.gguf", n_layer=1))
    add(tiny.write(home / "larger.gguf", n_layer=3))
    monkeypatch.setattr("pyspec.hub.drafts.MAX_TRIED", 3)
    assert [found.name for found in drafts_here(target)] == ["near", "smaller", "larger"]


@pytest.mark.parametrize("added", [("target",), ("draft",), ("target", "draft")])
def test_an_added_draft_beside_its_model(home, added):
    """A name for it hides neither the head nor whose it is."""
    (home / "mine").mkdir()
    files = {
        "target": tiny.write(home / "mine/toy-8b.gguf", n_layer=40),
        "draft": tiny_eagle.write(home / "mine/eagle3-toy.gguf"),
    }
    tiny_eagle.write(home / "mine/eagle3-toy-70b.gguf")
    add(home / "mine/eagle3-toy-70b.gguf")
    for name in added:
        add(files[name], name)
    wanted = "draft" if "draft" in added else "eagle3-toy"
    assert [found.name for found in drafts_here(files["target"])] == [wanted]
