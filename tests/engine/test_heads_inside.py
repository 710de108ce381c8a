"""Next-token heads inside random models of the architectures whose graph llama.cpp has: the text stays plain decoding's."""

import pytest
from helpers import tiny_heads
from helpers.answers import ask
from helpers.forked import told

from pyspec.engine.assembly import choose_parts
from pyspec.gguf.kinds import CHAINED_HEADS, NO_STATES, ONE_HEAD
from pyspec.llama.speculative import SpeculativeLlama

NAMES = ["deepseek2", "nemotron_h_moe", "qwen35"]
"""One of each kind of memory: latent, hybrid with experts, hybrid."""
_MORE = sorted((ONE_HEAD | CHAINED_HEADS) - NO_STATES - {*NAMES})
PROMPT = [100, 101, 102, 100, 101, 102, 100, 101]
EXACT = {"n_ctx": 128, "n_threads": 1, "flash_attn": False, "verbose": False}


def drafted(path):
    """Whether both texts are one, how many tokens the head proposed, and what `auto` drafts with."""
    plain = ask(SpeculativeLlama(str(path), draft="none", **EXACT), PROMPT, 20).ids
    llm = SpeculativeLlama(str(path), draft="mtp", length="fixed:2", **EXACT)
    same = ask(llm, PROMPT, 20).ids == plain
    name, _ = choose_parts(llm, "auto", "none").names
    return same, llm.last_speculation["drafted"], name


@pytest.mark.parametrize(
    "arch", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in _MORE)]
)
def test_a_head_drafts(arch, tmp_path, own_cache):
    """After its trial with the model in a child; it is what `auto` takes."""
    path = tmp_path / f"{arch}.gguf"
    assert tiny_heads.write(path, arch)
    same, proposed, by_itself = told(drafted, path)
    assert same
    assert by_itself == "lookup+mtp"
    assert proposed > 20
