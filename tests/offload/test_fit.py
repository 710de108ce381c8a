"""`n_gpu_layers="auto"` on devices with little memory: as many layers, and of mixtures experts, as fit, and never one more."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import tiny_archs

SHARES = (0.003, 0.1, 0.7, 0.85, 1.0, 1.3)
"""Of what the whole model takes: memory of the devices that it is put on."""

EXPERT_SHARES = (0.01, 0.15, 0.4, 0.6, 0.85, 1.3)
"""The same for a mixture, most of which are experts."""

_START = """
import json, sys
sys.path.insert(0, sys.argv[1])
from helpers.devices import RpcDevice
from pyspec.engine.models import SideOptions, SideModel
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.machine.devices import add_rpc_servers, layer_devices
from pyspec.engine.target import TargetLlama
made = []
def device(memory):
    made.append(RpcDevice(int(memory)))
    add_rpc_servers(made[-1].address)
    return made[-1], layer_devices()[-1].name
def open_(path, memory, layers, **options):
    one, name = device(memory)
    options = {"n_ctx": 16384, "n_threads": 1, "flash_attn": True, "verbose": False, "trust": True, **options}
    llm = TargetLlama(path, n_gpu_layers=layers, devices=[name], **options)
    return llm, one
def end(found):
    print(json.dumps(found))
    for each in made:
        each.close()
    sys.stdout.flush()
    import os; os._exit(0)  # what lies on servers that are gone cannot be freed
"""
HERE = Path(__file__).parents[1]


def found_by(in_child, code, *arguments):
    return json.loads(in_child(_START + code, HERE, *arguments).splitlines()[-1])


_SIZES = """
from pyspec.engine.offload import count_placeable
path, shares, how = sys.argv[2], *map(json.loads, sys.argv[3:])
llm, one = open_(path, 1 << 33, -1, **how)
whole, most = one.most_used, count_placeable(llm.model)
llm.close()
found = []
for share in shares:
    llm, one = open_(path, share * whole, "auto", **how)
    llm.eval([5, 6, 7])
    layers, experts = llm.model_params.n_gpu_layers, llm.experts
    row = {"layers": layers, "experts": experts, "used": one.most_used, "memory": int(share * whole), "refused": one.refused}
    llm.close()
    if experts or layers < most:  # one layer more or, where all are there, the experts of one
        kept = experts if layers < most else experts - 1
        llm, one = open_(path, 1 << 33, min(layers + 1, most), n_cpu_moe=kept, **how)
        row["next"] = one.most_used
        llm.close()
    found.append(row)
end(found)
"""


def fits(in_child, path, shares, **how):
    """What is placed on devices with these shares of what a model takes; checks the law that holds for each.

    No allocation is refused, a tenth stays free, and the next layer, or its experts, would take that.
    """
    rows: list[dict[str, Any]] = found_by(
        in_child, _SIZES, path, json.dumps(shares), json.dumps(how)
    )
    for row in rows:
        assert not row["refused"], row
        assert row["used"] <= 0.9 * row["memory"], row
        assert row.get("next", row["memory"]) > 0.9 * row["memory"], row
    assert "next" not in rows[-1]
    return rows


class _Kind(NamedTuple):
    """A model of eight layers and an output: its fixture, the devices, and how it is loaded."""

    model: str
    shares: Sequence[float]
    how: dict[str, Any]


@pytest.mark.parametrize(
    "kind",
    [_Kind("eight_layers", SHARES, {}), _Kind("eight_mixtures", EXPERT_SHARES, {"n_ctx": 512})],
    ids=["layers", "experts"],
)
def test_as_much_as_fits_is_placed(in_child, kind, request):
    rows = fits(in_child, request.getfixturevalue(kind.model), kind.shares, **kind.how)
    splits = [(row["layers"], -row["experts"]) for row in rows]
    assert splits == sorted(splits)
    assert splits[-1] == (9, 0)
    assert len(set(splits)) >= 5
    if kind.model == "eight_mixtures":
        assert splits[0][0] < 9
        assert all(layers in (0, 9) or experts == -8 for layers, experts in splits)
    else:
        assert splits[0][0] == 0


def test_two_devices_share(in_child, eight_layers):
    code = """
path = sys.argv[2]
llm, one = open_(path, 1 << 33, -1)
whole = one.most_used
llm.close()
(first, a), (second, b) = device(0.8 * whole), device(0.8 * whole)
llm = TargetLlama(path, n_gpu_layers="auto", devices=[a, b], n_ctx=16384, flash_attn=True, trust=True, verbose=False)
llm.eval([5, 6, 7])
both = [llm.model_params.n_gpu_layers, first.refused or second.refused, first.most_used, second.most_used]
llm.close()
llm, one = open_(path, 0.8 * whole, "auto")
end([llm.model_params.n_gpu_layers, *both])
"""
    alone, layers, refused, first, second = found_by(in_child, code, eight_layers)
    assert layers > alone
    assert not refused
    assert min(first, second) > 0


def test_sequences_count(in_child, eight_layers):
    code = """
from pyspec.batch import Batch, Settings
path = sys.argv[2]
def layers(parallel, memory):
    one, name = device(memory)
    options = {"n_ctx": 4096, "settings": Settings(max_tokens=4), "trust": True}
    with Batch(path, draft="none", n_gpu_layers="auto", devices=name, parallel=parallel, **options) as batch:
        texts = [result.text for result in batch.run(["abc", "def"])]
        return batch._models.target.model_params.n_gpu_layers, one.refused
llm, one = open_(path, 1 << 33, -1, n_ctx=4096)
memory = 1.4 * one.most_used
llm.close()
end([layers(1, memory), layers(8, memory)])
"""
    (one, refused), (eight, also) = found_by(in_child, code, eight_layers)
    assert not refused
    assert not also
    assert one == 9
    assert eight < 9


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
