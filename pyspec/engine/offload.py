"""Decides where weights go: which layers to devices, with `n_gpu_layers="auto"` as many as fit, and which experts stay apart.

To know what fits, llama.cpp loads the model and creates the context in a mode that allocates nothing. Its log then says on which
device each layer would lie, and how much memory each device would need. (libllama does not export llama.cpp's own fitting.)

Experts are most of a mixture's weights, and a token uses few of them. In main memory they cost little speed, and leave the
devices to attention and to the weights that every token uses (`--n-cpu-moe`).
"""

from __future__ import annotations

import ctypes
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp

from pyspec._lib import log_to
from pyspec.errors import ModelInvalid, OptionError
from pyspec.gguf.header import EXPERTS, header_of_parts
from pyspec.gguf.reader import Header
from pyspec.machine import AUTO
from pyspec.machine.attention import flash_type
from pyspec.machine.devices import (
    Device,
    buffer_names,
    cpu_buffer_type,
    layer_devices,
    room_on,
)
from pyspec.machine.others import file_name_of, name_of

# -- experts -----------------------------------------------------------------------------------------------------------


class _Override(ctypes.Structure):
    """llama.cpp's `llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


def checked_experts(n: Any, path: Path) -> int:
    """Return in how many layers, from the first on, experts stay in main memory; -1 for all.

    Raises OptionError for another value, and for experts that the model's file lacks.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < -1:
        raise OptionError(f"n_cpu_moe is {n!r}", "use a number of layers, or -1 for all")
    if n and not has_experts(header_of_parts(path)):
        raise OptionError(
            f"{file_name_of(path)} is no mixture of experts, so there are none to keep in main memory",
            "leave out --n-cpu-moe and --cpu-moe",
        )
    return min(n, 512)


def expert_patterns(n: int) -> tuple[str, ...]:
    """Return regular expressions for the names of the experts of n layers, -1 for all."""
    one = EXPERTS.pattern
    return (one,) if n < 0 else tuple(rf"blk\.{i}{one}" for i in range(n))


def overrides_for(n: int) -> Any:
    """Return llama.cpp's array that keeps the experts of n layers in main memory; None for none.

    It must outlive every load that uses it.
    """
    if not n:
        return None
    patterns = expert_patterns(n)
    made = (_Override * (len(patterns) + 1))()  # llama.cpp stops at one without a pattern
    for each, pattern in zip(made, patterns):
        each.pattern, each.buft = pattern.encode(), cpu_buffer_type()
    return made


def has_experts(header: Header) -> bool:
    return any(EXPERTS.search(tensor.name) for tensor in header.tensors)


# -- layers ------------------------------------------------------------------------------------------------------------


def requested_layers(value: Any) -> int:
    """Return -1 for "auto", and other values unchanged; range checks follow."""
    return -1 if value == AUTO else value


class Fit(NamedTuple):
    """A placement: layers on devices, the output included, and layers whose experts stay in main memory (`checked_experts`)."""

    layers: int
    experts: int


def fit_layers(
    path: Path,
    model_params: Any,
    context_params: Any,
    names: Sequence[str] = (),
    experts: int = 0,
) -> Fit:
    """Return the largest placement whose weights, KV cache and compute buffers fit into the devices' free memory.

    If a mixture does not fit as a whole, experts stay in main memory, those of as few layers as possible. If it does not fit
    without any experts, whole layers stay there too. Experts that the user has placed are not moved. There has to be a device.
    The parameters are those of the run, except n_gpu_layers, which is ignored. Raises ModelInvalid if llama.cpp cannot load it.
    """
    header = header_of_parts(path)
    load = _Load(header, model_params, context_params, layer_devices(names))
    most = count_layers(header)
    if experts or not has_experts(header) or load.over(most, 0) <= 0:
        return Fit(load.most_layers(most, experts), experts)
    # layers whose experts are in main memory: the fewest that are enough
    apart = 1 + bisect_left(range(1, most - 1), True, key=lambda n: load.over(most, n) <= 0)
    layers = load.most_layers(most, apart)
    return Fit(layers, apart if layers else 0)


def count_placeable(model: Any) -> int:
    """Return `count_layers` of a loaded `llama_model`."""
    return int(llama_cpp.llama_model_n_layer(model)) + 1


def trial_layers(n_layers: int, devices: Sequence[Device]) -> int:
    """Return how many layers a trial load puts on devices: as many as the run, or none on RPC servers.

    An RPC server serves one process at a time.
    """
    return 0 if any(each.kind == "RPC" for each in devices) else n_layers if devices else 0


class PlacedModel(NamedTuple):
    """A model's layers."""

    name: str
    n_gpu_layers: int
    """As requested; all if negative or above `most`."""
    most: int
    """All layers, the output included."""
    experts: int = 0

    def __str__(self) -> str:
        n = self.n_gpu_layers if 0 <= self.n_gpu_layers < self.most else self.most
        which = "all" if self.experts < 0 else self.experts
        own = f" (experts of {which} layers in main memory)" if self.experts else ""
        return f"{n} of {self.most} layers of {self.name}{own}"


def placed(target: Any, sides: Sequence[PlacedModel]) -> str:
    """Describe in one line which layers are on which devices; empty if all are on the CPU. sides: draft and companion."""
    most, layers = count_placeable(target.model), target.model_params.n_gpu_layers
    own = PlacedModel(name_of(Path(target.model_path)), layers, most, target.experts)
    there = [str(each) for each in (own, *sides) if each.n_gpu_layers]
    found = layer_devices(target.devices) if there else []
    if not found:
        return ""
    left = ", ".join(f"{each.name} ({each.free / 1e9:.1f} GB left)" for each in found)
    return f"{', '.join(there)} on {left}"


def place_on(params: Any, chosen: Any, options: Mapping[str, Any]) -> None:
    """Set a model's devices, from `device_array`, and how they share it, from llama-cpp-python's keywords."""
    params.devices = ctypes.cast(chosen, ctypes.c_void_p)
    params.split_mode = options.get("split_mode", llama_cpp.LLAMA_SPLIT_MODE_LAYER)
    params.main_gpu = options.get("main_gpu", 0)
    if options.get("tensor_split"):
        shares = ctypes.c_float * max(llama_cpp.LLAMA_MAX_DEVICES, llama_cpp.llama_max_devices())
        params.tensor_split = shares(*options["tensor_split"])


def context_of(options: Mapping[str, Any], cells: int, sequences: int) -> Any:
    """Return the context parameters that affect memory, from llama-cpp-python's keywords.

    cells: size of the KV cache, which all sequences share.
    """
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.kv_unified = cells, sequences, True
    params.n_batch = min(options.get("n_batch", 512), cells or 512)
    params.n_ubatch = min(options.get("n_ubatch", 512), params.n_batch)
    params.flash_attn_type = flash_type(options.get("flash_attn", False))
    for name in ("offload_kqv", "op_offload", "swa_full", "type_k", "type_v"):
        if options.get(name) is not None:
            setattr(params, name, options[name])
    return params


# -- what a load would hold --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Load:
    """A load of a model, with the parameters of the run, and the devices that it may use."""

    header: Header
    model_params: Any
    context_params: Any
    devices: Sequence[Device]

    def most_layers(self, most: int, experts: int) -> int:
        """Return how many of `most` layers fit."""
        if self.over(most, experts) <= 0:
            return most
        return bisect_left(range(1, most), True, key=lambda n: self.over(n, experts) > 0)

    def over(self, n: int, experts: int) -> int:
        """Return how many bytes the fullest device lacks with `n` layers on devices; at most 0 if they fit."""
        held = self._held(n, experts)
        return max(held[each.name] - room_on(each) for each in self.devices)

    def _held(self, n: int, experts: int) -> dict[str, int]:
        """Return the bytes that each device needs for `n` layers; more than it has if llama.cpp cannot create the context."""
        lines = self._rehearsal(n, experts)
        if lines is None:
            return {each.name: 1 << 62 for each in self.devices}
        found, buffers = _Reading.of(lines), buffer_names(self.devices)
        held: Counter[str] = Counter(_weights(self.header, found.layers, experts))
        for device, size in found.cache:
            held[device] += size
        for buffer, size in found.compute:
            held[buffers.get(buffer, "")] += size
        return {each.name: held[each.name] for each in self.devices}

    def _rehearsal(self, n: int, experts: int) -> list[str] | None:
        """Load the model and create the context without allocating. Return llama.cpp's log; None if there is no context."""
        path, overrides = self.header.path, overrides_for(experts)
        params = type(self.model_params).from_buffer_copy(self.model_params)
        params.n_gpu_layers, params.no_alloc = n, True
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        params.tensor_buft_overrides = address_of(overrides)
        with _logged() as lines:
            model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
            if not model:
                raise ModelInvalid(f"{path} could not be loaded", "try -ngl 0")
            context = llama_cpp.llama_init_from_model(model, self.context_params)
            if context:
                llama_cpp.llama_free(context)
            llama_cpp.llama_model_free(model)
        return lines if context else None


def address_of(overrides: Any) -> Any:
    """Return the address of an array of `overrides_for`; None for None."""
    return None if overrides is None else ctypes.cast(overrides, ctypes.c_void_p)


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect llama.cpp's log lines; nothing else gets them meanwhile."""
    lines: list[str] = []
    stopped: list[BaseException] = []

    def log(_level: int, text: bytes, _data: object) -> None:
        try:
            lines.append(text.decode("utf-8", "replace"))
        except BaseException as error:  # noqa: BLE001 - an interrupt in a callback would be lost
            stopped.append(error)

    with log_to(llama_cpp.llama_log_callback(log)):
        yield lines
    if stopped:
        raise stopped[0]


_ASSIGNED = re.compile(r"layer +(\d+) assigned to device ([^,]+),")
_CACHED = re.compile(r"layer +(\d+): dev = (\S+)")
_CACHE_SIZE = re.compile(r": size = +([\d.]+) MiB \(")
_COMPUTE = re.compile(r": +(\S+) compute buffer size = +([\d.]+) MiB")


@dataclass
class _Reading:
    """What the log says."""

    layers: dict[int, str] = field(default_factory=dict)  # the device of each, the output's last
    cache: list[tuple[str, int]] = field(default_factory=list)  # devices, and bytes
    compute: list[tuple[str, int]] = field(default_factory=list)  # buffers, and bytes

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Reading:
        found, waiting = cls(), list[str]()
        for line in lines:
            if match := _ASSIGNED.search(line):
                found.layers[int(match[1])] = match[2]
            elif match := _CACHED.search(line):
                waiting.append(match[2])
            elif match := _COMPUTE.search(line):
                found.compute.append((match[1], _bytes(match[2])))
            elif (match := _CACHE_SIZE.search(line)) and waiting:
                # the size of a cache follows its layers, which are equally large
                found.cache += [(device, _bytes(match[1]) // len(waiting)) for device in waiting]
                waiting = []
        return found


def _bytes(mebibytes: str) -> int:
    return int((float(mebibytes) + 0.01) * (1 << 20))


def _weights(header: Header, layers: Mapping[int, str], experts: int) -> dict[str, int]:
    """Return the bytes of weights on each device. Embeddings stay on the CPU; an output tied to them is a copy on its device."""
    held: Counter[str] = Counter()
    output = layers.get(max(layers, default=0), "")
    tied = not any(each.name == "output.weight" for each in header.tensors)
    apart = re.compile("|".join(expert_patterns(experts)) or "(?!)")
    for tensor in header.tensors:
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        embeds = tensor.name.startswith(_INPUTS)
        if apart.search(tensor.name):
            continue
        if block:
            held[layers.get(int(block[1]), output)] += tensor.nbytes
        elif not embeds or (tied and tensor.name == "token_embd.weight"):
            held[output] += tensor.nbytes
    return held


_INPUTS = ("token_embd", "per_layer_token_embd", "position_embd", "token_types")


def count_layers(header: Header) -> int:
    """Count the layers that can be placed, including the output."""
    blocks = header.of_arch("block_count")
    return (blocks if isinstance(blocks, int) else 0) + 1


def rough_layers(header: Header, devices: Sequence[Device]) -> int:
    """Estimate from sizes how many layers fit; 0 without room. Only trial loads, which just have to run kernels, use this."""
    size = sum(each.nbytes for each in header.tensors)
    room = sum(max(0, room_on(each)) for each in devices)
    most = count_layers(header)
    return max(1, min(most, int(0.5 * most * room / max(1, size)))) if room else 0
