"""Mixtures of experts on devices: as many experts as asked for stay in main memory. What fits by itself: test_fit.py."""

from offload.test_fit import found_by


def test_answers_are_the_processors_and_the_line_says_where(in_child, eight_mixtures):
    """With experts of some layers or of all in main memory; the draft keeps its own on the device."""
    code = """
path = sys.argv[2]
one, name = device(1 << 32)
ways = (
    {"n_gpu_layers": 0}, {"n_cpu_moe": 3}, {"n_cpu_moe": -1},
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
        f"{whole} (experts of all layers in main memory), {whole}",
    ]
