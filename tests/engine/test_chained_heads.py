"""Next-token heads inside random models of the architectures whose graph llama.cpp has: the text stays plain decoding's.

Of several the i-th drafted token is the i-th head's, as llama.cpp's own calls give it for the text alone.
"""

from functools import partial

import llama_cpp
import numpy as np
import pytest
from helpers import tiny_archs
from helpers.answers import ask, check_four_at_once, drafted
from helpers.forked import told
from helpers.nextn import context_of, decode, likeliest, loaded
from llama_cpp import llama_cpp_ext as ext

from pyspec.engine.assembly import choose_parts
from pyspec.gguf.kinds import CHAINED_HEADS, NO_STATES, ONE_HEAD
from pyspec.llama.speculative import SpeculativeLlama

PROMPT = [100, 101, 102, 100, 101, 102, 100, 101]
EXACT = {"n_ctx": 128, "n_threads": 1, "flash_attn": False, "verbose": False}


def reference(model, text, heads):
    """A draft after a text by llama.cpp alone, each head in a context of its own that has read everything itself."""
    width = llama_cpp.llama_model_n_embd(model)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    options = {"flash_attn_type": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED}
    # as llama.cpp's server has it: states of all rows of the target, of the heads those of rows with logits
    with context_of(model, chosen=False, **options) as trunk:
        states = decode(trunk, text, 0, None, width)[:-1]
    found = []
    options["ctx_type"] = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    for head in heads:
        with context_of(model, **options) as context:
            ext.llama_set_nextn_layer_offset(context, head)
            own = decode(context, [*text[1:], *found], 1, states, width)[-1:]
            found.append(likeliest(context, n_vocab))
        states = np.concatenate([states, own])
    return found


def look(path, n_heads, draft):
    """What came of texts, drafts, and drafts of the reference."""
    plain = SpeculativeLlama(str(path), draft="none", **EXACT)
    llm = SpeculativeLlama(str(path), draft=draft, length="fixed:6", **EXACT)
    same, found = llm.assembly.loop.draft_longest == n_heads, []
    with loaded(path) as model:
        for text in (PROMPT, [*PROMPT, 9, 9], PROMPT[:3], [20, 21]):
            for answered in (1, 2, 9, 30):
                same &= ask(llm, text, answered).ids == ask(plain, text, answered).ids
                theirs = partial(reference, model, llm.session.tokens)
                found.append((drafted(llm, 6)[0], theirs(range(n_heads)), theirs([0] * n_heads)))
    return same, found


def written(folder, arch, n_heads):
    path = folder / f"{arch}.gguf"
    assert tiny_archs.write(path, arch, n_heads)
    return path


_MORE = [(arch, n) for arch in sorted(CHAINED_HEADS) for n in (2, 3)]


@pytest.mark.parametrize(
    ("arch", "n_heads"),
    [("step35", 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in _MORE)],
)
def test_each_token_is_its_own_heads(arch, n_heads, tmp_path, own_cache):
    path = written(tmp_path, arch, n_heads)
    same, found = told(look, path, n_heads, "mtp")
    assert same
    assert [ours for ours, _, _ in found] == [theirs for _, theirs, _ in found]
    assert any(ours != first for ours, _, first in found)  # the first head alone says others


def four_at_once(path):
    def opened(target, **options):
        return SpeculativeLlama(str(target), **{**EXACT, "flash_attn": "auto"}, **options)

    check_four_at_once(opened, path, "mtp")


def test_four_at_once(tmp_path, own_cache):
    told(four_at_once, written(tmp_path, "step35", 3))


NAMES = ["deepseek2", "nemotron_h_moe", "qwen35"]
"""One of each kind of memory: latent, hybrid with experts, hybrid."""
_OTHERS = sorted((ONE_HEAD | CHAINED_HEADS) - NO_STATES - {*NAMES})


def with_one_head(path):
    """Whether both texts are one, how many tokens the head proposed, and what `auto` drafts with."""
    plain = ask(SpeculativeLlama(str(path), draft="none", **EXACT), PROMPT, 20).ids
    llm = SpeculativeLlama(str(path), draft="mtp", length="fixed:2", **EXACT)
    same = ask(llm, PROMPT, 20).ids == plain
    name, _ = choose_parts(llm, "auto", "none").names
    return same, llm.last_speculation["drafted"], name


@pytest.mark.parametrize(
    "arch", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in _OTHERS)]
)
def test_a_head_drafts(arch, tmp_path, own_cache):
    """After its trial with the model in a child; it is what `auto` takes."""
    same, proposed, by_itself = told(with_one_head, written(tmp_path, arch, 1))
    assert same
    assert by_itself == "lookup+mtp"
    assert proposed > 20
