"""Mixtures of experts on devices: as many experts as asked for stay in main memory. What fits by itself: test_fit.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from offload.test_fit import found_by

Run = Callable[..., str]


def test_answers_are_the_processors_and_the_line_says_where(
    in_child: Run, eight_mixtures: Path
) -> None:
    """For target and draft, with experts of some layers, of all, and single tensors in main memory."""
    code = """
path = sys.argv[2]
one, name = device(1 << 32)
ways = (
    {"n_gpu_layers": 0}, {"n_cpu_moe": 3}, {"n_cpu_moe": -1, "draft_n_cpu_moe": 2},
    {"override_tensor": f"blk.1.ffn_up_exps=CPU,attn_q={name}", "draft_override_tensor": {"attn": "CPU"}},
)
texts, lines, used = [], [], []
for how in ways:
    llm = SpeculativeLlama(path, draft=path, trust=True, n_ctx=512, length="fixed:4", devices=name,
        **{"n_gpu_layers": -1, **how})
    texts.append(llm.create_completion("abc", max_tokens=32, temperature=0)["choices"][0]["text"])
    lines.append(llm.placed.partition(" on ")[0])
    used.append(one.most_used)
    llm.close()
end([len(set(texts)), lines])
"""
    kinds, lines = found_by(in_child, code, eight_mixtures)
    assert kinds == 1
    whole = "9 of 9 layers of mixture"
    assert lines == [
        "",
        f"{whole} (experts of 3 layers in main memory), {whole}",
        f"{whole} (experts of all layers in main memory), {whole} (experts of 2 layers in main memory)",
        f"{whole} (blk.1.ffn_up_exps, attn_q as asked), {whole} (attn as asked)",
    ]
