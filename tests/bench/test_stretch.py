"""A stretched target says what the model says that it was made of."""

from itertools import islice

import gguf
import pytest
from helpers import tiny

PROMPT = b"the quick brown fox jumps"


def greedy(llm, n=48):
    return list(islice(llm.generate(llm.tokenize(PROMPT), temp=0.0), n))


@pytest.fixture
def stretched(tiny_target, tmp_path, script):
    """Has the script make a file of the tiny target by these words; returns it, and its tensors by name."""

    def stretch(*words):
        out = tmp_path / "out.gguf"
        script("stretch").main([str(tiny_target), str(out), *words])
        return out, {tensor.name: tensor.data for tensor in gguf.GGUFReader(out).tensors}

    return stretch


@pytest.mark.parametrize(("words", "blocks", "width", "experts"), [
    (["--times", "4"], 8, 1, ()),
    (["--wide", "4"], 2, 4, ()),
    (["--experts", "8", "--active", "3"], 2, 1, (8,)),
])  # fmt: skip
def test_a_stretched_target_answers_like_its_model(
    tiny_target, stretched, open_plain, words, blocks, width, experts
):
    """F32: what is added adds exact zeros, norms of four times the width take in an exact square root, and experts are copies."""
    out, tensors = stretched(*words)
    assert greedy(open_plain(out)) == greedy(open_plain(tiny_target))
    down = tensors["blk.1.ffn_down_exps.weight" if experts else "blk.1.ffn_down.weight"]
    assert down.shape == (*experts, width * tiny.N_EMBD, width * tiny.N_FF)
    assert f"blk.{blocks - 1}.attn_q.weight" in tensors
    assert f"blk.{blocks}.attn_q.weight" not in tensors


def test_a_shortened_model_lacks_the_blocks(tiny_target, stretched, open_plain):
    out, made = stretched("--drop", "0")
    own = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tiny_target).tensors}
    assert (made["blk.0.attn_q.weight"] == own["blk.1.attn_q.weight"]).all()
    assert "blk.1.attn_q.weight" not in made
    assert greedy(open_plain(out)) != greedy(open_plain(tiny_target))
