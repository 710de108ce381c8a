"""Models in several files, as large ones come: what their later parts hold counts from the first look on."""

import pytest
from helpers import tiny, tiny_eagle
from helpers.answers import ask
from helpers.make_gguf import in_parts, read

from pyspec.gguf.header import facts_of
from pyspec.gguf.kinds import TargetShape, head_size, n_heads, read_states
from pyspec.machine.files import size_of

pytestmark = pytest.mark.usefixtures("own_cache")

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2, tiny.A]


def split(path, last):
    """The file in three parts: no tensor in the first, those of this name's beginning in the last."""
    made = read(path)
    late = [tensor for tensor in made.tensors if tensor.name.startswith(last)]
    early = [tensor for tensor in made.tensors if tensor not in late]
    folder = path.with_suffix("")
    folder.mkdir()
    return in_parts(made, folder, [[], early, late])[0]


@pytest.fixture
def whole(tmp_path):
    """A hybrid of four layers with a next-token head, in one file."""
    return tiny.write(tmp_path / "headed.gguf", arch="qwen35", n_layer=4, n_heads=1)


def test_a_first_part_without_tensors_is_a_model(open_llama, whole):
    parts = split(whole, "blk.3.")
    assert ask(open_llama(parts), PROMPT, 20).ids == ask(open_llama(whole), PROMPT, 20).ids


def test_a_head_in_the_last_part_drafts(open_llama, whole):
    parts = split(whole, "blk.4.")
    assert n_heads(parts) == 1
    assert head_size(parts) == head_size(whole)
    llm = open_llama(parts, draft="auto")
    assert ask(llm, PROMPT, 40).ids == ask(open_llama(whole), PROMPT, 40).ids
    assert llm.last_speculation["draft"] == "lookup+mtp"
    assert llm.last_speculation["drafted"] > 0


def test_a_missing_part_is_looked_for_again(whole):
    """What is still being fetched is known once it is complete."""
    parts = split(whole, "blk.4.")
    last = parts.with_name("big-00003-of-00003.gguf")
    held = last.read_bytes()
    last.unlink()
    assert facts_of(parts) is None
    last.write_bytes(held[: len(held) // 2])
    assert (facts_of(parts), n_heads(parts)) == (None, 0)
    last.write_bytes(held)
    facts = facts_of(parts)
    assert facts is not None
    assert facts.heads == 1
    assert facts.size == size_of(parts) > whole.stat().st_size


def test_a_draft_in_parts_is_checked(tmp_path):
    """An EAGLE-3 head's ids are read from the part that has them."""
    ids = list(range(3, 20))
    whole = tiny_eagle.write(tmp_path / "eagle3.gguf", d2t=ids)
    parts = split(whole, "d2t")
    shape = TargetShape("llama", tiny_eagle.N_LAYER, tiny.N_EMBD, tiny.N_VOCAB)
    assert read_states(parts, shape) == read_states(whole, shape) is not None
