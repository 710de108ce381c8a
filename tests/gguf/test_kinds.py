"""Every kind of GGUF file is known by its header, and what is no model is refused with what it is for."""

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from helpers import tiny

from pyspec.errors import DraftMismatch, UnsupportedModel
from pyspec.gguf.header import facts_of
from pyspec.gguf.kinds import (
    CHAINED_HEADS,
    NO_STATES,
    ONE_HEAD,
    PURPOSES,
    STREAMS,
    n_heads,
    refuse_other_kinds,
    unused_heads,
    why_plain,
)
from pyspec.hub.drafts import drafts_here
from pyspec.llama.speculative import SpeculativeLlama

pytestmark = pytest.mark.usefixtures("own_cache")


def write(path, arch, *tensors, kind="", heads=0):
    """A file of an architecture with tensors of these names, which is all that tells kinds apart."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(3)
    if kind:
        writer.add_type(kind)
    if heads:
        writer.add_uint32(f"{arch}.nextn_predict_layers", heads)
    for name in tensors:
        writer.add_tensor(name, np.zeros((4, 4), np.float32))
    return tiny.written(writer, path)


HEAD = "blk.2.nextn.eh_proj.weight"
NO_GRAPH = ("exaone4", "exaone-moe", "glm4", "bailingmoe2", "dots3note", "glm5-next")
"""Architectures whose files have heads, for which llama.cpp has no graph."""
KINDS = {
    "eagle3": ("eagle3", ("fc.weight",), {}), "mtp": ("qwen35", ("token_embd.weight", HEAD), {"heads": 1}),
    "gemma4-assistant": ("gemma4-assistant", ("blk.0.attn_q.weight",), {}),
    "dflash": ("dflash", ("fc.weight",), {}), "dspark": ("dflash", ("fc.weight", "markov_w1.weight"), {}),
    "mmproj": ("clip", ("mm.0.weight",), {"kind": "mmproj"}),
    "lora": ("llama", ("blk.0.attn_q.weight.lora_a",), {"kind": "adapter"}), "vocabulary": ("llama", (), {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", PURPOSES)
def test_it_is_known_and_refused(tmp_path, kind):
    arch, tensors, options = KINDS[kind]
    path = write(tmp_path / "file.gguf", arch, *tensors, **options)
    facts = facts_of(path)
    assert facts.kind == kind
    with pytest.raises(UnsupportedModel, match=r"file\.gguf") as caught:
        refuse_other_kinds(path)
    what, hint = PURPOSES[kind]
    assert what in caught.value.message
    assert caught.value.hint == hint


def test_a_model_with_its_head_inside_is_a_model(tmp_path):
    path = tiny.write(tmp_path / "whole.gguf", arch="qwen35", n_heads=1)
    facts = facts_of(path)
    assert (facts.kind, facts.heads) == ("model", 1)


@pytest.mark.parametrize(("arch", "heads", "said"), [
    *((arch, (HEAD,), f"no graph for it in {arch} models") for arch in sorted(NO_GRAPH)),
    ("deepseek4", (HEAD,), "states of several streams, which it cannot be given"),  # wider than what the head is given
    ("glm4moe", ("blk.1.nextn.eh_proj.weight", HEAD), "no graph for them in glm4moe models"),  # which is for one
    # llama.cpp has a graph for this head, and keeps no states to go back to
    ("qwen3next", (HEAD,), "decode plainly, its next-token head (MTP) left unused"),
])  # fmt: skip
def test_heads_that_do_not_run_are_said(tmp_path, arch, heads, said):
    path = write(tmp_path / "m.gguf", arch, "blk.0.attn_q.weight", *heads, heads=len(heads))
    assert not n_heads(path)
    assert "".join((unused_heads(path), why_plain(path))).endswith(said)


@pytest.mark.parametrize("kind", ["mtp", "gemma4-assistant", "mmproj", "lora"])
def test_auto_does_not_take_it(tmp_path, kind, monkeypatch):
    """Whatever its name says; asked for, it is refused by name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    target = tiny.write(tmp_path / "target.gguf", n_layer=8)
    arch, tensors, options = KINDS[kind]
    path = write(tmp_path / "mtp-target-draft.gguf", arch, *tensors, **options)
    assert list(drafts_here(target)) == []
    with pytest.raises((UnsupportedModel, DraftMismatch), match=r"mtp-target-draft\.gguf"):
        SpeculativeLlama(str(target), draft=str(path), n_ctx=64, verbose=False, trust=True)


PAGE = Path(__file__).resolve().parents[2] / ".docs/pages/drafts.md"
SAYS = {
    **dict.fromkeys(ONE_HEAD - NO_STATES, "runs"),
    **dict.fromkeys(CHAINED_HEADS, "runs, one head a token"),
    **dict.fromkeys(
        ONE_HEAD & NO_STATES,
        "no: llama.cpp keeps no states to go back to, so these models decode plainly",
    ),
    **dict.fromkeys(STREAMS, "no: states of several streams"),
    **dict.fromkeys(NO_GRAPH, "no: llama.cpp has no graph for it"),
}
"""What the page says of each architecture with next-token heads."""


def test_the_page_has_every_architecture_with_heads():
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert dict(rows) == SAYS


@pytest.mark.parametrize("arch", sorted((ONE_HEAD | CHAINED_HEADS) - NO_STATES))
def test_what_runs_is_what_the_page_says(arch, tmp_path):
    path = write(tmp_path / "model.gguf", arch, "blk.0.attn_norm.weight", HEAD, heads=1)
    assert n_heads(path)
    assert unused_heads(path) == why_plain(path) == ""
