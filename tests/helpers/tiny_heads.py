"""A tiny random file of an architecture with next-token heads (MTP): `tiny_archs`' with layers more, which are the heads."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest

from helpers import tiny_archs
from helpers.make_gguf import ARR, I32, STR, U32, Gguf


def write(path: Path, arch: str, n_heads: int = 1, *, words: bool = False) -> bool:
    """Write a random file; whether it is whole, as llama.cpp sees it. words: its tokens are words, not bytes."""
    defaults = llama_cpp.llama_cpp.llama_model_default_params
    given = tiny_archs.header

    def with_heads() -> Any:
        params = defaults()
        params.load_mtp = True
        return params

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_cpp.llama_cpp, "llama_model_default_params", with_heads)
        patch.setattr(tiny_archs, "header", partial(_header, given, n_heads, words))
        patch.setattr(tiny_archs, "json", SimpleNamespace(loads=_needed, dumps=json.dumps))
        return tiny_archs.write(path, arch)


_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"

_LIKE_THE_FIRST = {"bailingmoe3"}
"""Whose heads have attention where the last of the other layers has none."""
_FLAT = {"glm4moe"}
"""Whose heads turn positions in one dimension alone, as models of texts do."""


def _header(given: Any, n_heads: int, words: bool, arch: str, *, experts: bool) -> Gguf:
    """Lists with an entry a layer get as many more."""
    made: Gguf = given(arch, experts=experts)
    kind, layers = made.kv[f"{arch}.block_count"]
    for key, (of, value) in list(made.kv.items()):
        if key.startswith(arch) and isinstance(value, tuple) and len(value[1]) == layers:
            like = value[1][0 if arch in _LIKE_THE_FIRST else -1]
            made.kv[key] = of, (value[0], [*value[1], *[like] * n_heads])
    made.kv[f"{arch}.block_count"] = kind, layers + n_heads
    made.kv[f"{arch}.nextn_predict_layers"] = U32, n_heads
    if arch in _FLAT:
        del made.kv[f"{arch}.rope.dimension_sections"]
    if words:
        _, (_, tokens) = made.kv[_TOKENS]
        named = [*tokens[:3], *(f"\u2581w{i}" for i in range(3, len(tokens)))]
        made.kv[_TOKENS] = ARR, (STR, named)
        made.kv[_TYPES] = ARR, (I32, [2, 3, 3, *[1] * (len(tokens) - 3)])
    return made


def _needed(said: str) -> list[Any]:
    """Without the scales of a head that it leaves out, which llama.cpp counts as missing; mimo2's heads with fused attention."""
    found = [tensor for tensor in json.loads(said) if not tensor[0].endswith("scale")]
    heads = {
        name.split(".nextn.")[0] for name, _ in found if name.endswith(".nextn.eh_proj.weight")
    }
    if not any(name == f"{head}.attn_sinks.weight" for name, _ in found for head in heads):
        return found
    parts = {f"{head}.attn_{what}.{kind}" for head in heads for what in "qkv" for kind in _KINDS}
    sizes = dict(found)
    kept = [tensor for tensor in found if tensor[0] not in parts]
    for head in heads:
        rows = sum(sizes[f"{head}.attn_{what}.weight"][1] for what in "qkv")
        kept.append([f"{head}.attn_qkv.weight", [sizes[f"{head}.attn_q.weight"][0], rows, 1, 1]])
    return kept


_KINDS = ("weight", "bias")
