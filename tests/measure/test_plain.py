"""Plain llama.cpp beside ours: no file of the project loads a model that the processor's extra buffers would crash on."""

import ast
from contextlib import closing
from pathlib import Path

import llama_cpp
import pytest
from helpers import amx
from measure.contenders import PlainLlama

ROOT = Path(__file__).parents[2]
SMALL = {"n_ctx": 64, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
ITS_OWN = {"pyspec/engine/target.py"}
"""Where `llama_cpp.Llama` is made safe."""


def unsafe(source):
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    names = [ast.unparse(call.func) for call in calls]
    own = ("Llama", "llama_cpp.Llama", "lc.Llama")
    found = [n for n in names if n.removesuffix(".from_pretrained") in own]
    defaults = [n for n in names if n.endswith("llama_model_default_params")]
    return found + (defaults if "use_extra_bufts" not in source else [])


def test_no_source_loads_without_a_word_on_extra_buffers():
    """The package, the benchmarks and the recipe; a peer that dies would end the comparison."""
    found = {}
    for folder in ("pyspec", "bench", "models"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ROOT / "bench" / "build" in path.parents:
                continue  # other programs
            name = path.relative_to(ROOT).as_posix()
            if name not in ITS_OWN and (calls := unsafe(path.read_text(encoding="utf-8"))):
                found[name] = calls
    assert found == {}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("works", [True, False])
def test_a_trial_decides_for_the_peers_too(tiny_target, works, monkeypatch):
    """Where AMX's kernels crash, the plain one would end the comparison."""
    monkeypatch.setattr("pyspec.gguf.check._trial", lambda *_: works)
    with closing(PlainLlama(str(tiny_target), **SMALL)) as llm:
        assert llm.model_params.use_extra_bufts is works


def test_plain_objects_of_tests_are_safe(tiny_target, monkeypatch):
    for module in (llama_cpp, llama_cpp.llama_cpp):  # put back afterwards
        monkeypatch.setattr(module, "llama_model_default_params", module.llama_model_default_params)
    amx.without_extra()
    with closing(llama_cpp.Llama(str(tiny_target), **SMALL)) as llm:
        assert llm.model_params.use_extra_bufts is False
