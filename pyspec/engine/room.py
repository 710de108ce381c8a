"""Memory of models and their KV caches, and the room for them on this machine and on devices."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from pyspec.engine.models import SideOptions
from pyspec.engine.profiles import gpu_layers
from pyspec.engine.target import SNAPSHOTS
from pyspec.gguf.header import facts_of
from pyspec.gguf.reader import GGML_TYPES
from pyspec.machine.devices import layer_devices
from pyspec.machine.files import size_of
from pyspec.machine.machine import machine_memory

log = logging.getLogger("pyspec")

STEP = 256
"""llama.cpp rounds contexts, and each stream, up to a multiple of this."""


def padded(cells: int) -> int:
    """The size of the context that llama.cpp creates for so many cells."""
    return -(-cells // STEP) * STEP


_F16 = 1  # llama.cpp's number of the default KV type
_SHARE, _DEVICE_SHARE = 0.25, 0.75
# shares of this machine's memory, and of a device's, for the KV cells of a default number of sequences


def memory_for(target: Any, n_ctx: int, beside: float = 0.0) -> int:
    """The number of sequences of n_ctx cells that fit.

    The layers on each take at most a quarter of this machine's memory, and three quarters of the free memory on devices.
    beside: bytes of a token in the KV caches of draft and companion. These are on devices if any layer of the target is, like
    a recurrent model's states.
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
    """Bytes of a token in a layer's KV cache."""
    model, params = target.model, target.context_params
    heads = max(1, llama_cpp.llama_model_n_head(model))
    width = llama_cpp.llama_model_n_embd(model) * llama_cpp.llama_model_n_head_kv(model) // heads
    kinds = [GGML_TYPES[kind] for kind in (params.type_k, params.type_v)]
    return float(max(1, width)) * sum(kind.bytes / kind.elements for kind in kinds)


def _state_bytes(target: Any) -> int:
    """Bytes of a sequence's recurrent states, snapshots included."""
    facts = facts_of(Path(target.model_path))
    return int(1 + target.context_params.n_rs_seq) * (facts.state if facts else 0)


def states_for(path: Path, n_seq: int, layers: int | str, devices: Sequence[str]) -> int:
    """The number of snapshots that a hybrid model can keep for each sequence, in the memory that is meant for KV cells.

    layers: requested on devices, whose free memory then counts, less the weights.
    """
    facts = facts_of(path)
    if facts is None or not facts.state:
        return SNAPSHOTS  # llama.cpp ignores the number for other models
    room = _room_beside(facts.size, layers, devices)
    return int(max(0, min(SNAPSHOTS, room // (n_seq * facts.state))))


def _room_beside(weights: int, layers: int | str, devices: Sequence[str]) -> float:
    """Bytes for KV cells beside so many bytes of weights."""
    room = _SHARE * (machine_memory() or math.inf)
    if layers != 0 and (found := layer_devices(devices)):
        room = min(room, _DEVICE_SHARE * (sum(each.free for each in found) - weights))
    return room


def longest_context(
    path: Path, others: Sequence[Path], layers: int | str, devices: Sequence[str], n_seq: int
) -> int:
    """The context that a model was trained for, or as much of it as memory holds for n_seq sequences, with a warning.

    others: draft, companion. layers: requested on devices.
    """
    facts = facts_of(path)
    most = (facts.n_ctx if facts else 0) or STEP
    beside = sum(cell_bytes(other, SideOptions()) for other in others)
    a_cell = n_seq * (cell_bytes(path, SideOptions()) + beside)
    room = _room_beside(size_of(path), layers, devices)
    fits = most if not a_cell else min(float(most), room // a_cell)
    if fits >= most:
        return most
    held = max(STEP, int(fits) // STEP * STEP)
    log.warning("memory limits the context to %d tokens; the model was trained for %d", held, most)
    return held


def cell_bytes(path: Path, options: SideOptions) -> float:
    """Bytes of a token in a model's KV cache, by the shapes of its projections."""
    facts = facts_of(path)
    kinds = (GGML_TYPES[_F16 if k is None else k] for k in (options.type_k, options.type_v))
    sizes = zip(facts.cells if facts else (), kinds)
    return float(sum(n * kind.bytes / kind.elements for n, kind in sizes))


def layers_away(target: Any) -> int:
    """Number of layers whose KV cache is on a device."""
    layers = llama_cpp.llama_model_n_layer(target.model)
    offloaded = gpu_layers(target)
    if not target.context_params.offload_kqv or not offloaded:
        return 0
    return int(layers if offloaded < 0 else min(layers, offloaded - 1))  # the output goes first


# -- models together -------------------------------------------------------------------------------

# default share of memory for several models; the rest is for compute buffers and other programs
_MODELS_SHARE = 0.75


def held_bytes(target: Any, cells: int, n_seq: int, beside: float = 0.0) -> int:
    """Bytes of a loaded target's weights, and of all KV caches.

    cells: of each cache. beside: bytes of a token in the KV caches of draft and companion.
    """
    layers = llama_cpp.llama_model_n_layer(target.model)
    caches = cells * (layers * _layer_bytes(target) + beside) + n_seq * _state_bytes(target)
    return int(llama_cpp.llama_model_size(target.model) + caches)


def expected_bytes(target: Path, others: Sequence[Path], cells: int, options: SideOptions) -> int:
    """An estimate of the bytes of models that are not loaded. others: draft, companion. options: types of the target's KV."""
    caches = cell_bytes(target, options) + sum(cell_bytes(path, SideOptions()) for path in others)
    return int(size_of(target) + sum(map(size_of, others)) + cells * caches)


def room_of_models(layers: int | str, names: Sequence[str]) -> float:
    """Bytes for several models together, on the devices if layers are requested there, else on this machine."""
    found = layer_devices(names) if layers != 0 else []
    memory = sum(each.total for each in found) or machine_memory()
    return _MODELS_SHARE * memory or math.inf
