"""Next-token heads inside random models of the architectures whose graph llama.cpp has: the text stays plain decoding's."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest
import tiny_archs
from answers import ask
from fuzz.forked import fork
from store.make_gguf import U32, Gguf

from pyspec.llama import SpeculativeLlama

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")

NAMES = [
    "cohere2moe",
    "deepseek2",
    "deepseek32",
    "glm-dsa",
    "hy_v3",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "step35",
]
PROMPT = [100, 101, 102, 100, 101, 102, 100, 101]
EXACT: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "flash_attn": False, "verbose": False}


def with_head(header: Any, arch: str, *, experts: bool) -> Gguf:
    """A header with one layer more, which is the head; lists with an entry a layer get another."""
    made: Gguf = header(arch, experts=experts)
    kind, layers = made.kv[f"{arch}.block_count"]
    for key, (of, value) in list(made.kv.items()):
        if key.startswith(arch) and isinstance(value, tuple) and len(value[1]) == layers:
            made.kv[key] = of, (value[0], [*value[1], value[1][-1]])
    made.kv[f"{arch}.block_count"] = kind, layers + 1
    made.kv[f"{arch}.nextn_predict_layers"] = U32, 1
    return made


def without_scales(said: str) -> list[Any]:
    """llama.cpp counts those of a head that it leaves out as missing."""
    return [tensor for tensor in json.loads(said) if not tensor[0].endswith("scale")]


def drafted(path: Path, report: int) -> None:
    """Whether both texts are one, and how many tokens the head proposed."""
    plain = ask(SpeculativeLlama(str(path), draft="none", **EXACT), PROMPT, 20).ids
    llm = SpeculativeLlama(str(path), draft="mtp", length="fixed:2", **EXACT)
    same = ask(llm, PROMPT, 20).ids == plain
    os.write(report, json.dumps([same, llm.last_speculation["drafted"]]).encode())
    os._exit(0)


@pytest.mark.parametrize("arch", NAMES)
def test_a_head_drafts(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its trial with the model in a child."""
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def with_heads() -> Any:
        params = defaults()
        params.load_mtp = True
        return params

    path = tmp_path / f"{arch}.gguf"
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp.llama_cpp, "llama_model_default_params", with_heads)
        patch.setattr(tiny_archs, "header", partial(with_head, tiny_archs.header))
        patch.setattr(tiny_archs, "json", SimpleNamespace(loads=without_scales, dumps=json.dumps))
        assert tiny_archs.write(path, arch)
    said, status, where = fork(partial(drafted, path), 100)
    assert status == 0, (status, where)
    same, proposed = json.loads(said)
    assert same
    assert proposed > 20
