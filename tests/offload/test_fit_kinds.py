"""`-ngl auto` for other kinds of memory and with a draft: no size of a device is too small, and none is left half empty."""

import json

import pytest
from helpers import tiny_archs
from offload.test_fit import SHARES, fits, found_by


@pytest.mark.parametrize("arch", ["gemma3", "qwen35", "deepseek2", "rwkv7"])
def test_other_memories_are_counted(in_child, tmp_path, arch):
    """Windows, states beside attention, latent rows, and states alone: what is put there fits, and one layer more would not."""
    path = tmp_path / f"{arch}.gguf"
    assert tiny_archs.write(path, arch)
    fits(in_child, path, [0.3, 0.8, 1.3], n_ctx=8192, flash_attn=False)


def test_a_draft_is_never_too_much(in_child, eight_layers, tiny_draft):
    """Whatever a device holds, target and draft answer with drafts, and nothing is refused there."""
    code = """
path, draft, shares = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
def answer(memory, layers):
    one, name = device(memory)
    llm = SpeculativeLlama(path, draft=draft, n_gpu_layers=layers, devices=name, n_ctx=16384, trust=True, length="fixed:4")
    llm.create_completion("abc", max_tokens=8, temperature=0)
    found = [llm.model_params.n_gpu_layers, llm.assembly.placed[0][1], llm.last_speculation["drafted"] > 0, one.refused]
    llm.close()
    return found, one.most_used
_, whole = answer(1 << 33, -1)
end([answer(share * whole, "auto")[0] for share in shares])
"""
    rows = found_by(in_child, code, eight_layers, tiny_draft, json.dumps(SHARES))
    assert all(drafted and not refused for _, _, drafted, refused in rows)
    placed = [(target, draft) for target, draft, _, _ in rows]
    assert placed == sorted(placed)
    assert placed[0] <= (1, 0)
    assert placed[-1] == (9, 3)
