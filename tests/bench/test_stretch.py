"""A stretched target says what the model says that it was made of."""

from itertools import islice

import gguf
import pytest

PROMPT = b"the quick brown fox jumps"


def tensors(path):
    return gguf.GGUFReader(path).tensors


def greedy(llm, n=48):
    return list(islice(llm.generate(llm.tokenize(PROMPT), temp=0.0), n))


@pytest.fixture
def stretched(tiny_target, tmp_path, script):
    """Has the script make a file of the tiny target by these words; returns it."""

    def stretch(*words):
        script("stretch").main([str(tiny_target), str(tmp_path / "out.gguf"), *words])
        return tmp_path / "out.gguf"

    return stretch


@pytest.mark.parametrize("way", ["--times", "--wide"])
def test_a_stretched_target_answers_like_its_model(tiny_target, stretched, open_plain, way):
    """F32: what is added adds exact zeros, and norms of a model four times as wide take in a square root that is exact."""
    assert greedy(open_plain(stretched(way, "4"))) == greedy(open_plain(tiny_target))


def test_a_mixture_answers_like_its_model(tiny_target, stretched, open_plain):
    """Copies of one layer, whose weights have the sum 1."""
    out = stretched("--experts", "8", "--active", "3")
    shapes = {tensor.name: tensor.shape.tolist() for tensor in tensors(out)}
    assert shapes["blk.1.ffn_down_exps.weight"][2] == shapes["blk.1.ffn_gate_inp.weight"][1] == 8
    assert greedy(open_plain(out)) == greedy(open_plain(tiny_target))


def test_a_stretched_target_is_as_deep_as_was_asked(stretched):
    """Idle blocks are blocks: they are counted, and only what they would add is zero."""
    reader = gguf.GGUFReader(stretched("--times", "3"))
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    assert reader.get_field("llama.block_count").contents() == 6
    assert (tensors["blk.1.attn_q.weight"] == tensors["blk.0.attn_q.weight"]).all()
    assert not tensors["blk.1.ffn_down.weight"].any()
    assert tensors["blk.3.ffn_down.weight"].any()


def test_a_wide_target_is_as_wide_as_was_asked(tiny_target, stretched):
    both = tiny_target, stretched("--wide", "3")
    old, new = ({t.name: t.shape.tolist() for t in tensors(path)} for path in both)
    for name in "blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output_norm.weight":
        assert new[name] == [3 * size for size in old[name]]
    width, n_vocab = old["token_embd.weight"]
    assert new["token_embd.weight"] == [3 * width, n_vocab]


def test_a_shortened_model_lacks_the_blocks(tiny_target, stretched, open_plain):
    out = stretched("--drop", "0")
    made, own = ({t.name: t.data for t in tensors(path)} for path in (out, tiny_target))
    assert (made["blk.0.attn_q.weight"] == own["blk.1.attn_q.weight"]).all()
    assert "blk.1.attn_q.weight" not in made
    assert greedy(open_plain(out)) != greedy(open_plain(tiny_target))


def test_metadata_stays(tiny_target, stretched):
    old, new = (gguf.GGUFReader(path).fields for path in (tiny_target, stretched("--times", "2")))
    same = [name for name in old if not name.startswith("GGUF.") and "block_count" not in name]
    assert {n: new[n].contents() for n in same} == {n: old[n].contents() for n in same}


def test_one_of_both_must_be_asked_for(stretched):
    with pytest.raises(SystemExit) as error:
        stretched()
    assert error.value.code == 2
