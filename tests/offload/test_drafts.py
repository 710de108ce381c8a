"""What drafts on a device: lookup, a model, a companion and EAGLE-3, over plain and quantised cells, by class and commands."""

import json
from types import SimpleNamespace

import pytest
from helpers import tiny
from helpers.asking import ask
from helpers.devices import RpcDevice
from helpers.running import one_processor, port_of, start
from offload.test_fit import found_by

ANSWERS = """
from pyspec.sampling.verification import Strict
path, options = sys.argv[2], json.loads(sys.argv[3])
one, name = device(1 << 32)
options = {"n_ctx": 512, "n_threads": 1, "length": "fixed:4", "trust": True, **options}
found = []
for layers in (0, -1):
    llm = SpeculativeLlama(path, n_gpu_layers=layers, devices=name, verification=Strict(), **options)
    text = llm.create_completion("abcabcabcabd", max_tokens=48, temperature=0)["choices"][0]["text"]
    found.append([text, llm.last_speculation["drafted"], len(llm.assembly.placed), one.most_used > 0])
    llm.close()
end(found)
"""


def answers(in_child, path, **options):
    """How many models lie beside the target, where a device has all layers, drafts, and gives the processor's text."""
    here, away = found_by(in_child, ANSWERS, path, json.dumps(options))
    assert here[0] == away[0]
    assert len(here[0]) > 32
    assert (here[3], away[3]) == (False, True)
    assert away[1] > 0
    return away[2]


def test_lookup(in_child, tiny_target):
    assert answers(in_child, tiny_target, draft="lookup") == 0


def test_companion(in_child, tiny_target, tiny_draft, tiny_companion):
    words = {"draft": str(tiny_draft), "companion": str(tiny_companion), "length": "companion"}
    assert answers(in_child, tiny_target, **words) == 2


def test_eagle3(in_child, tiny_target, tiny_eagle3):
    """States of three of the target's layers go from there to the draft."""
    assert answers(in_child, tiny_target, draft=str(tiny_eagle3)) == 1


@pytest.fixture(scope="session")
def wide_heads(tiny_folder):
    """A target and a worse copy whose heads have the 32 entries that a block of quantised cells has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "N_HEAD", 1)
        return (
            tiny.write(tiny_folder / "wide.gguf"),
            tiny.write(tiny_folder / "wide-draft.gguf", noise=0.15),
        )


def test_quantised_cells(in_child, wide_heads):
    target, draft = wide_heads
    types = dict.fromkeys(("type_k", "type_v", "draft_type_k", "draft_type_v"), 8)
    assert answers(in_child, target, draft=str(draft), flash_attn=True, **types) == 1


@pytest.fixture
def device():
    made = RpcDevice(1 << 32)
    yield made
    made.close()


def command(device, *words):
    where = ["--rpc", device.address, "-ngl", "all", "--trust-model", "-c", "1024", "-t", "1"]
    return start(*words, *where, before=one_processor)


def test_serve(device, tiny_ascii):
    """Two answers by HTTP, drafted for; what lies where is said before the first."""
    with command(device, "serve", "-m", tiny_ascii, "--draft", tiny_ascii, "--port", 0) as process:
        server = SimpleNamespace(port=port_of(process))
        asked = {"prompt": "abcabc", "max_tokens": 24, "temperature": 0}
        told = [ask(server, "/v1/completions", **asked) for _ in range(2)]
        process.terminate()
        placed = process.ended().stderr
    first, second = (answer["choices"][0]["text"] for answer in told)
    assert first == second
    assert len(first) > 8
    assert "layers of ascii on RPC0" in placed
    assert device.most_used > 0
