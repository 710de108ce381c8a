"""Where layers go in trials, on cards that this machine need not have."""

from dataclasses import replace

import pytest
from helpers.devices import for_processors

from pyspec.engine import models
from pyspec.engine import target as of_target
from pyspec.engine.models import SideOptions
from pyspec.engine.offload import Fit, rough_layers
from pyspec.engine.target import TargetLlama
from pyspec.errors import ModelRejected
from pyspec.gguf import check
from pyspec.gguf.header import read_header
from pyspec.machine.child import ChildExit
from pyspec.machine.devices import Device

pytestmark = for_processors("this machine's own devices are put aside")
SMALL = {"n_ctx": 128, "n_threads": 1, "verbose": False}
CARD = Device("CUDA0", "a card", "GPU", 8 << 30, 8 << 30, 0)


@pytest.fixture
def trials(own_cache, monkeypatch):
    """What each trial is told; those with layers on a device end without memory, all others go well."""
    told = []

    def run(_header, loading, _extra):
        told.append(loading)
        return ChildExit("cudaMalloc failed: out of memory" if loading.n_gpu_layers else "")

    monkeypatch.setattr(check, "_run", run)
    return told


def cards(monkeypatch, free):
    """Cards CUDA0 and CUDA1 with so many bytes free; whatever is asked of llama.cpp's fitting is one layer."""
    found = {name: replace(CARD, name=name, free=free) for name in ("CUDA0", "CUDA1")}
    for module in (of_target, models):
        here = {"layer_devices": lambda names=(): [found[name] for name in names or found]}
        here["fit_layers"] = lambda *_: Fit(1 if free else 0, 0)
        for name, each in here.items():
            monkeypatch.setattr(module, name, each)


@pytest.mark.parametrize("free", [0, 8 << 30])
def test_auto_answers_although_a_card_is_full(tiny_target, trials, monkeypatch, free):
    cards(monkeypatch, free)
    llm = TargetLlama(str(tiny_target), n_gpu_layers="auto", **SMALL)
    assert llm.model_params.n_gpu_layers == 0
    assert [each.n_gpu_layers for each in trials] == [3, 0] if free else [0]
    llm.eval([1, 2, 3])
    llm.close()


def test_a_draft_is_tried_on_its_own_devices(
    open_plain, tiny_target, tiny_draft, trials, monkeypatch
):
    """Main device and shares of the target are about the target's devices: as the run, the trial leaves them out."""
    llm = open_plain(tiny_target)
    llm.devices, llm.trust = ("CUDA0", "CUDA1"), False
    llm.loading = replace(llm.loading, main_gpu=1, tensor_split=(3.0, 1.0))
    llm.model_params.main_gpu = 1
    cards(monkeypatch, 8 << 30)
    for devices in (("CUDA0",), None):
        with pytest.raises(ModelRejected):
            models.SideModel(tiny_draft, llm, SideOptions(1, devices))
    own, followed = trials
    assert (own.devices, own.main_gpu, own.tensor_split) == (("CUDA0",), 0, ())
    assert (followed.main_gpu, followed.tensor_split) == (1, (3.0, 1.0))


def test_a_full_device_is_tried_with_no_layer(tiny_target):
    """One that would have to make room for a single layer would fail, and with it the trial of a good file."""
    header = read_header(tiny_target)
    full = Device("CUDA0", "a card", "GPU", 1 << 20, 8 << 30, 0)
    assert rough_layers(header, [full]) == 0
    assert rough_layers(header, [full, replace(full, free=4 << 30)]) == 3


def test_nothing_is_placed_where_there_is_no_device(
    open_plain, tiny_target, tiny_draft, monkeypatch
):
    """Computing what fits reads the whole file's header, a tenth of a second for a small vocabulary."""
    llm = open_plain(tiny_target)
    monkeypatch.setattr(models, "layer_devices", lambda _names=(): [])
    monkeypatch.setattr(models, "fit_layers", None)
    side = models.SideModel(tiny_draft, llm, SideOptions(n_gpu_layers="auto"))
    assert side.placed.n_gpu_layers == 0
    side.close()
