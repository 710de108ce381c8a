"""What models and their KV caches take of memory, and what there is for them: of this machine and of devices."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from pyspec.engine.models import Placement
from pyspec.engine.profiles import gpu_layers
from pyspec.engine.target import SNAPSHOTS
from pyspec.store.devices import layer_devices
from pyspec.store.files import size_of
from pyspec.store.gguf import GGML_TYPES
from pyspec.store.header import facts_of, read_header
from pyspec.store.machine import machine_memory

log = logging.getLogger("pyspec")

STEP = 256
"""llama.cpp rounds contexts, and each stream, up to it."""


def padded(cells: int) -> int:
    """The context that llama.cpp makes of so many cells."""
    return -(-cells // STEP) * STEP


_F16 = 1  # llama.cpp's number for the type of KV that models beside the target have
_SHARE, _DEVICE_SHARE = 0.25, 0.75
# of this machine's memory, and of a device's, that KV cells may take unless more sequences were asked for


def memory_for(target: Any, n_ctx: int, beside: float = 0.0) -> int:
    """How many sequences of n_ctx cells fit.

    In a quarter of this machine's memory, and in three quarters of what is free on devices, each for the layers it has.
    beside: bytes of a position in the KV of draft and companion, which lie on devices where any of the target does, as do the
    states that a recurrent model keeps.
    """
    layers = llama_cpp.llama_model_n_layer(target.model)
    cells = padded(n_ctx)
    a_layer = _layer_bytes(target) * cells
    others = beside * cells + _state_bytes(target)
    away = layers_away(target)
    found = layer_devices(target.devices) if away else []
    most = math.inf
    if away:
        free = sum(each.free for each in found)
        most = _DEVICE_SHARE * free / (a_layer * away + others)
        others = 0.0
    if away < layers and (memory := machine_memory()):
        most = min(most, _SHARE * memory / (a_layer * (layers - away) + others))
    return int(min(most, 1 << 30))


def _layer_bytes(target: Any) -> float:
    """Bytes of a position in the KV of a layer."""
    model, params = target.model, target.context_params
    heads = max(1, llama_cpp.llama_model_n_head(model))
    width = llama_cpp.llama_model_n_embd(model) * llama_cpp.llama_model_n_head_kv(model) // heads
    kinds = [GGML_TYPES[kind] for kind in (params.type_k, params.type_v)]
    return float(max(1, width)) * sum(kind.bytes / kind.elements for kind in kinds)


def _state_bytes(target: Any) -> int:
    """Bytes of the recurrent states of a sequence, those that are kept among them."""
    facts = facts_of(Path(target.model_path))
    return int(1 + target.context_params.n_rs_seq) * (facts.state if facts else 0)


def states_for(path: Path, n_seq: int, layers: int | str, devices: Sequence[str]) -> int:
    """States that a hybrid model can keep for each of so many sequences: of this machine's memory they take what KV cells may.

    layers: those asked to be on devices, whose free memory counts then, less the weights.
    """
    facts = facts_of(path)
    if facts is None or not facts.state:
        return SNAPSHOTS  # llama.cpp keeps none where there is no use for them
    room = _room_beside(facts.size, layers, devices)
    return int(max(0, min(SNAPSHOTS, room // (n_seq * facts.state))))


def _room_beside(weights: int, layers: int | str, devices: Sequence[str]) -> float:
    """Bytes that KV cells may take beside so many of weights."""
    room = _SHARE * (machine_memory() or math.inf)
    if layers != 0 and (found := layer_devices(devices)):
        room = min(room, _DEVICE_SHARE * (sum(each.free for each in found) - weights))
    return room


def longest_context(
    path: Path, others: Sequence[Path], layers: int | str, devices: Sequence[str], n_seq: int
) -> int:
    """The context that a model was trained for, or as much of it as memory holds for each of so many sequences, which is said.

    others: draft, companion. layers: those asked to be on devices.
    """
    trained = read_header(path, weights=False).of_arch("context_length")
    most = trained if type(trained) is int and trained > 0 else STEP
    beside = sum(cell_bytes(other, Placement()) for other in others)
    a_cell = n_seq * (cell_bytes(path, Placement()) + beside)
    room = _room_beside(size_of(path), layers, devices)
    fits = most if not a_cell else min(float(most), room // a_cell)
    if fits >= most:
        return most
    held = max(STEP, int(fits) // STEP * STEP)
    log.warning("memory limits the context to %d tokens; the model was trained for %d", held, most)
    return held


def cell_bytes(path: Path, placement: Placement) -> float:
    """Bytes of a position in the KV of a model beside the target: what its layers project a token to."""
    asked = {"attn_k.weight": placement.type_k, "attn_v.weight": placement.type_v}
    kinds = {name: _F16 if kind is None else kind for name, kind in asked.items()}
    total = 0.0
    for tensor in read_header(path, weights=False).tensors:
        name = tensor.name.split(".", 2)[-1]
        if name in kinds:
            kind = GGML_TYPES[kinds[name]]
            total += tensor.shape[-1] * kind.bytes / kind.elements
    return total


def layers_away(target: Any) -> int:
    """Layers whose KV cache lies on a device."""
    layers = llama_cpp.llama_model_n_layer(target.model)
    asked = gpu_layers(target)
    if not target.context_params.offload_kqv or not asked:
        return 0
    return int(layers if asked < 0 else min(layers, asked - 1))  # the output goes first


# -- models together -------------------------------------------------------------------------------

_MODELS_SHARE = 0.75
# of memory that several models may take where nobody said how much; the rest is for what decoding needs, and for others


def held_bytes(target: Any, cells: int, n_seq: int, beside: float = 0.0) -> int:
    """Bytes of a loaded target's weights, and of KV caches of so many cells for so many sequences.

    beside: bytes of a position in the KV of others.
    """
    layers = llama_cpp.llama_model_n_layer(target.model)
    caches = cells * (layers * _layer_bytes(target) + beside) + n_seq * _state_bytes(target)
    return int(llama_cpp.llama_model_size(target.model) + caches)


def expected_bytes(target: Path, others: Sequence[Path], cells: int, placement: Placement) -> int:
    """About the same before anything is loaded, by the files. others: draft, companion; placement: types of the target's KV."""
    caches = cell_bytes(target, placement) + sum(cell_bytes(path, Placement()) for path in others)
    return int(size_of(target) + sum(map(size_of, others)) + cells * caches)


def room_of_models(layers: int | str, names: Sequence[str]) -> float:
    """Bytes that several models may take together: of the devices where layers are asked to be there, else of this machine."""
    found = layer_devices(names) if layers != 0 else []
    memory = sum(each.total for each in found) or machine_memory()
    return _MODELS_SHARE * memory or math.inf
