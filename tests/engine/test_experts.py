"""Experts in main memory: what is understood, and what is refused."""

import re

import pytest
from helpers import tiny

from pyspec.batch import Batch
from pyspec.engine.offload import expert_patterns
from pyspec.errors import OptionError
from pyspec.llama.speculative import SpeculativeLlama


@pytest.fixture(scope="module")
def mixture(tiny_folder):
    return tiny.write(tiny_folder / "four-experts.gguf", arch="mixture")


@pytest.mark.parametrize(
    ("n", "kept"), [(-1, "0.ffn_gate_exps 1.ffn_up_exps"), (1, "0.ffn_gate_exps"), (0, "")]
)
def test_experts_of_the_first_layers_are_kept(n, kept):
    """Shared experts are none: every token uses them."""
    names = ("0.ffn_gate_exps", "1.ffn_up_exps", "0.ffn_up_shexp")
    pattern = re.compile("|".join(expert_patterns(n)) or "(?!)")
    assert [name for name in names if pattern.search(f"blk.{name}.weight")] == kept.split()


@pytest.mark.parametrize("n", [-2, True])
def test_what_cannot_be_is_refused(n, mixture, tiny_target):
    with pytest.raises(OptionError, match=f"n_cpu_moe is {n}"):
        SpeculativeLlama(mixture, n_cpu_moe=n, n_ctx=64)
    for make in (SpeculativeLlama, Batch):
        with pytest.raises(OptionError, match=r"target\.gguf is no mixture"):
            make(str(tiny_target), n_cpu_moe=1, draft="none", n_ctx=64)


def test_overrides_reach_llama_cpp(mixture, open_llama):
    def text(**how):
        llm = open_llama(mixture, trust=True, **how)
        assert bool(llm.model_params.tensor_buft_overrides) == bool(how)
        return llm.create_completion("abc", max_tokens=16, temperature=0)["choices"][0]["text"]

    assert text(n_cpu_moe=-1) == text()
