"""`n_gpu_layers="auto"` on devices with little memory: as many layers as fit, and never one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SHARES = (0.003, 0.1, 0.7, 0.85, 1.0, 1.3)
"""Of what the whole model takes: memory of the devices that it is put on."""

_START = """
import json, sys
sys.path.insert(0, sys.argv[1])
from helpers.devices import RpcDevice
from pyspec.engine.models import SideOptions, SideModel
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.store.devices import add_rpc_servers, layer_devices
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

Run = Callable[..., str]
HERE = Path(__file__).parents[1]


def found_by(in_child: Run, code: str, *arguments: object) -> Any:
    return json.loads(in_child(_START + code, HERE, *arguments).splitlines()[-1])


_SIZES = """
path, shares = sys.argv[2], json.loads(sys.argv[3])
llm, one = open_(path, 1 << 33, -1)
whole = one.most_used
llm.close()
found = []
for share in shares:
    llm, one = open_(path, share * whole, "auto")
    n = llm.model_params.n_gpu_layers
    llm.eval([5, 6, 7])
    row = {"n": n, "used": one.most_used, "memory": int(share * whole), "refused": one.refused}
    llm.close()
    if n < 9:
        llm, one = open_(path, 1 << 33, n + 1)
        row["next"] = one.most_used
        llm.close()
    found.append(row)
end(found)
"""


@pytest.fixture(scope="module")
def sizes(in_child: Run, eight_layers: Path) -> list[dict[str, Any]]:
    """What came of a model of eight layers and an output on six devices."""
    rows: list[dict[str, Any]] = found_by(in_child, _SIZES, eight_layers, json.dumps(SHARES))
    return rows


@pytest.mark.parametrize("i", range(len(SHARES)))
def test_never_more_than_there_is(sizes: list[dict[str, Any]], i: int) -> None:
    """No allocation is refused, and a tenth stays free."""
    assert not sizes[i]["refused"]
    assert sizes[i]["used"] <= 0.9 * sizes[i]["memory"]


@pytest.mark.parametrize("i", range(len(SHARES)))
def test_one_more_would_not_fit(sizes: list[dict[str, Any]], i: int) -> None:
    """The next layer would take the tenth that stays free; the right number is what is left."""
    row = sizes[i]
    assert row["n"] == 9 or row["next"] > 0.9 * row["memory"]


def test_sizes_differ(sizes: list[dict[str, Any]]) -> None:
    """From none to all: else the tests above say little."""
    numbers = [row["n"] for row in sizes]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (0, 9)
    assert len(set(numbers)) >= 5


def test_cache_counts(in_child: Run, eight_layers: Path) -> None:
    """A device that holds all layers with a short context holds fewer with a long one."""
    code = """
path = sys.argv[2]
llm, one = open_(path, 1 << 33, -1, n_ctx=1024)
memory = 1.3 * one.most_used
llm.close()
counts = []
for n_ctx in (1024, 16384):
    llm, one = open_(path, memory, "auto", n_ctx=n_ctx)
    counts.append(llm.model_params.n_gpu_layers)
    llm.close()
end(counts)
"""
    short, long = found_by(in_child, code, eight_layers)
    assert short == 9
    assert long < 9


def test_two_devices_share(in_child: Run, eight_layers: Path) -> None:
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


def test_draft_takes_what_is_left(in_child: Run, eight_layers: Path, tiny_draft: Path) -> None:
    """The target comes first; where it leaves nothing, the draft is the processor's."""
    code = """
path, draft = sys.argv[2:]
def layers(memory):
    one, name = device(memory)
    llm = SpeculativeLlama(path, draft=draft, n_gpu_layers="auto", devices=name, n_ctx=16384, trust=True, length="fixed:4")
    llm.create_completion("abc", max_tokens=8, temperature=0)
    found = [llm.model_params.n_gpu_layers, llm.assembly.placed[0][1], one.refused, llm.last_speculation["drafted"] > 0]
    llm.close()
    return found
llm, one = open_(path, 1 << 33, -1)
whole = one.most_used
llm.close()
end([layers(4 * whole), layers(1.15 * whole)])
"""
    roomy, tight = found_by(in_child, code, eight_layers, tiny_draft)
    assert roomy == [9, 3, False, True]
    assert tight[0] == 9
    assert tight[1] < 3
    assert tight[2:] == [False, True]


def test_sequences_count(in_child: Run, eight_layers: Path) -> None:
    """A batch fits layers with the cells of all its sequences."""
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
