"""Where models lie: draft and companion as the target, what `pyspec info` lists, and what the command line refuses."""

from offload.test_fit import found_by


def test_draft_follows_the_target_or_has_a_device_of_its_own(in_child, eight_layers, tiny_draft):
    code = """
path, draft = sys.argv[2:]
(first, a), (second, b) = device(1 << 32), device(1 << 32)
llm = SpeculativeLlama(path, draft="none", n_gpu_layers=-1, devices=a, trust=True, n_ctx=512)
alone = first.most_used
llm.close()
llm = SpeculativeLlama(path, draft=draft, n_gpu_layers=-1, devices=a, trust=True, n_ctx=512)
both = first.most_used
llm.close()
llm = SpeculativeLlama(path, draft=draft, n_gpu_layers=-1, devices=a, draft_devices=b, trust=True, n_ctx=512)
end([both > alone, first.most_used == both, second.most_used > 0])
"""
    assert found_by(in_child, code, eight_layers, tiny_draft) == [True, True, True]


def test_shares_and_main_device_reach_the_draft(in_child, eight_layers, tiny_draft):
    code = """
path, draft = sys.argv[2:]
def used(**how):
    (first, a), (second, b) = device(1 << 32), device(1 << 32)
    llm = SpeculativeLlama(path, draft=draft, n_gpu_layers=-1, devices=[a, b], trust=True, n_ctx=512, **how)
    found = [first.most_used > 0, second.most_used > 0]
    llm.close()
    return found
end([used(split_mode=0, main_gpu=1), used(tensor_split=[1.0, 0.0]), used()])
"""
    second, first, both = found_by(in_child, code, eight_layers, tiny_draft)
    assert second == [False, True]
    assert first[0]
    assert both == [True, True]


def test_answers_are_the_processors(in_child, eight_layers, tiny_draft):
    code = """
path, draft = sys.argv[2:]
one, name = device(1 << 32)
texts = []
for layers, drafts in ((0, 0), (4, 0), (4, 99), (-1, 0), (-1, 2), (-1, None)):
    llm = SpeculativeLlama(path, draft=draft, n_gpu_layers=layers, draft_n_gpu_layers=drafts, devices=name, trust=True,
        n_ctx=512, length="fixed:4")
    texts.append(llm.create_completion("abc", max_tokens=64, temperature=0)["choices"][0]["text"])
    llm.close()
end([len(set(texts)), len(texts[0])])
"""
    kinds, length = found_by(in_child, code, eight_layers, tiny_draft)
    assert kinds == 1
    assert length > 32


def test_one_line_says_where(in_child, eight_layers, tiny_draft):
    code = """
path, draft = sys.argv[2:]
one, name = device(1 << 32)
said = []
for layers in (0, 4, -1):
    llm = SpeculativeLlama(path, draft=draft, n_gpu_layers=layers, devices=name, trust=True, n_ctx=512)
    said.append(llm.placed)
    llm.close()
end(said)
"""
    none, some, all_ = found_by(in_child, code, eight_layers, tiny_draft)
    assert none == ""
    assert some.startswith("4 of 9 layers of eight, 3 of 3 layers of draft on RPC0 (")
    assert all_.startswith("9 of 9 layers of eight, 3 of 3 layers of draft on RPC0 (")


def test_info_lists_servers(in_child):
    code = """
one, name = device(3 << 30)
each = layer_devices()[0]
end([each.name, each.description == one.address, each.kind, each.free, each.total])
"""
    assert found_by(in_child, code) == ["RPC0", True, "RPC", 3 << 30, 3 << 30]


def test_facts_of_a_pair_tell_devices_apart(in_child, eight_layers):
    code = """
from pyspec.engine.profiles import placed, prior_curve
path = sys.argv[2]
one, name = device(1 << 32)
keys, curves = [], []
for layers in (0, -1):
    llm = TargetLlama(path, n_gpu_layers=layers, devices=name, trust=True, n_ctx=512, verbose=False)
    keys.append(placed(llm))
    curves.append(list(prior_curve(llm, []).target.table()))
    llm.close()
end([keys[0] != keys[1], one.address in keys[1], curves[0] == curves[1]])
"""
    assert found_by(in_child, code, eight_layers) == [True, True, True]


def test_experts_in_main_memory(in_child, eight_mixtures):
    """Of some layers or of all: answers are the processor's, the line says where, and the draft keeps its own on the device."""
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
