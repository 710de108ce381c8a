"""Models and contexts of a batch: one context each of target, draft and companion for all sequences, its KV layout and memory.

In a pool, sequences with different numbers of rows share a pass, and a shared prefix takes its cells once. But attention checks
the mask of every cell for every row. In streams, a row attends to its own sequence's cells alone. But a batch with unequal rows
splits into several passes, so that drafts rarely pay, and every sequence takes as many cells as the longest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
from llama_cpp import _internals as internals

from pyspec.engine.assembly import Assembly, Parts, choose_parts, may_use_head
from pyspec.engine.handle import Role
from pyspec.engine.models import SideOptions, longest_draft
from pyspec.engine.profiles import gpu_layers
from pyspec.engine.target import SNAPSHOTS, TargetLlama
from pyspec.errors import EngineError, NoMemory
from pyspec.gguf.header import facts_of, shape_of
from pyspec.gguf.reader import GGML_TYPES
from pyspec.machine import AUTO, parse_devices
from pyspec.machine.attention import flash_pays, flash_type
from pyspec.machine.devices import layer_devices
from pyspec.machine.files import size_of
from pyspec.machine.machine import machine_memory
from pyspec.sampling.options import is_quantised

log = logging.getLogger("pyspec")

# -- memory ----------------------------------------------------------------------------------------

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
    if away < layers:
        most = min(most, _SHARE * machine_memory() / (a_layer * (layers - away) + others))
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


def _room_beside(weights: int, layers: int | str, devices: Sequence[str]) -> float:
    """Bytes for KV cells beside so many bytes of weights. layers: requested on devices, whose free memory then counts."""
    room = _SHARE * machine_memory()
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


# default share of memory for several models; the rest is for compute buffers and other programs
_MODELS_SHARE = 0.75


def expected_bytes(target: Path, others: Sequence[Path], cells: int, options: SideOptions) -> int:
    """An estimate of the bytes of models that are not loaded. others: draft, companion. options: types of the target's KV."""
    caches = cell_bytes(target, options) + sum(cell_bytes(path, SideOptions()) for path in others)
    return int(size_of(target) + sum(map(size_of, others)) + cells * caches)


def room_of_models(layers: int | str, names: Sequence[str]) -> float:
    """Bytes for several models together, on the devices if layers are requested there, else on this machine."""
    found = layer_devices(names) if layers != 0 else []
    return _MODELS_SHARE * (sum(each.total for each in found) or machine_memory())


# -- sequences and cells ---------------------------------------------------------------------------

MAX_SEQUENCES = 64
"""Largest number of sequences: cost curves end there."""

FEW = 2
"""Largest number of running sequences that draft in streams: unequal rows split into as many passes. So many share a pool."""

WASTE = 3
"""Streams may take so many times the cells of a pool."""

# least gain that is worth the memory of more sequences
_WORTH = 0.03


class Layout(NamedTuple):
    """KV cells of a context."""

    cells: int
    """Of all sequences together."""
    each: int = 0
    """Of one stream; 0 in a pool."""


def lay_out(
    n_slots: int, n_ctx: int, needs: Sequence[int], *, streams: bool, must_stream: bool = False
) -> Layout:
    """Choose a layout for `n_slots` sequences.

    n_ctx: tokens of a sequence. needs: cells of the largest records, largest first. streams: whether they are allowed and faster;
    they are for records of about equal length. must_stream: rule a pool out.
    """
    pool = padded(max(sum(needs[:n_slots]), n_ctx))
    each = padded(needs[0]) if needs else 0
    if must_stream or (streams and 0 < n_slots * each <= WASTE * pool):
        return Layout(each * n_slots, each)
    return Layout(pool)


def best_parallel(times: Sequence[float]) -> int:
    """The default number of sequences; `times[n]` is the target's time for n rows.

    The smallest power of two whose throughput no other up to 16 exceeds by 3 %. A doubling that gains nothing may precede one
    that does: on some machines two rows cost as much as two single ones, but eight as much as four.
    """
    sizes = [n for n in (1, 2, 4, 8, 16) if n < len(times)]
    best = max(n / times[n] for n in sizes)
    return next(n for n in sizes if (1 + _WORTH) * n / times[n] >= best)


# -- models and contexts ---------------------------------------------------------------------------

# of n_batch for each sequence: the engine gives it n_batch / n rows for its draft
_ROWS_A_SEQUENCE = 72


class Models:
    """The target as a `llama_cpp.Llama`, with its draft and companion, before contexts are created.

    at_once: largest number of sequences. kwargs: those of `TargetLlama`. Raises ModelInvalid, ModelNotFound or UnsupportedModel.
    """

    def __init__(
        self,
        path: str,
        draft: Any,
        companion: str,
        memory: bool = False,
        *,
        at_once: int = 1,
        **kwargs: Any,
    ) -> None:
        self._flash = kwargs.get("flash_attn", AUTO)
        kwargs = {"verbose": False, **kwargs, "flash_attn": bool(self._flash), "n_ctx": STEP}
        self.requested_rows = int(kwargs.get("n_batch", 0)), int(kwargs.get("n_ubatch", 0))
        kwargs["head"] = may_use_head(draft)
        kwargs["snapshots"] = self._snapshots(Path(path), draft, at_once, kwargs)
        self.target = TargetLlama(path, **kwargs)
        try:
            self._automatic = draft == "auto" and longest_draft(self.target) > 0
            self.parts: Parts = choose_parts(self.target, draft, companion)
            self.parts.remember(memory)
        except BaseException:
            self.target.close()
            raise

    def flash(self, n_pooled: int, n_ctx: int) -> bool:
        """Whether flash attention is on for sequences of n_ctx cells. n_pooled: how many share a pool.

        Without it each row takes as long as for all cells of the pool; it is on for more than `FEW`.
        """
        params = self.target.context_params
        if self._flash != AUTO or is_quantised(params.type_v) or not self.on_cpu or n_pooled > FEW:
            return bool(self._flash)
        rows = self.requested_rows[1] or params.n_ubatch
        shape, threads = shape_of(Path(self.target.model_path)), params.n_threads
        return flash_pays(shape, n_ctx, threads, n_ubatch=rows, swa_full=params.swa_full)

    @staticmethod
    def _snapshots(path: Path, draft: Any, at_once: int, kwargs: Mapping[str, Any]) -> int:
        """States to keep for each sequence: all that a named draft can use, or as many as memory holds for an automatic one."""
        facts = facts_of(path) if draft == "auto" else None
        # llama.cpp ignores the number for models without states
        if facts is None or not facts.state:
            return 0 if draft == "none" else SNAPSHOTS
        names = parse_devices(kwargs.get("devices"))
        room = _room_beside(facts.size, kwargs.get("n_gpu_layers", 0), names)
        return int(max(0, min(SNAPSHOTS, room // (at_once * facts.state))))

    @property
    def files(self) -> dict[str, Path]:
        """The model files by role."""
        files = {"target": Path(self.target.model_path), "draft": self.parts.draft}
        files |= {"companion": self.parts.companion}
        return {role: path for role, path in files.items() if path is not None}

    def beside(self, options: SideOptions) -> float:
        """Bytes of a token in the KV caches of draft and companion."""
        paths = self.parts.draft, self.parts.companion
        found = [cell_bytes(path, options) for path in paths if path is not None]
        if self.parts.head:  # one layer of the target's file
            found[0] /= int(llama_cpp.llama_model_n_layer(self.target.model))
        return sum(found)

    def held(self, cells: int, n_seq: int, options: SideOptions) -> int:
        """Bytes of all weights and KV caches. cells: of each cache, for n_seq sequences."""
        model = self.target.model
        a_cell = llama_cpp.llama_model_n_layer(model) * _layer_bytes(self.target)
        caches = cells * (a_cell + self.beside(options)) + n_seq * _state_bytes(self.target)
        weights = llama_cpp.llama_model_size(model) + sum(side.size for side in self.parts.sides)
        return int(weights + caches)

    @property
    def on_cpu(self) -> bool:
        """Whether no layer of the target is offloaded."""
        return gpu_layers(self.target) == 0

    @property
    def must_draft(self) -> bool:
        """Whether drafts rule streams out. On a CPU, those of `auto` do not."""
        drafts = self.parts.drafter is not None or self.parts.draft is not None
        return drafts and not (self._automatic and self.on_cpu)

    def close(self) -> None:
        self.target.close()


class Contexts:
    """An engine over `n_slots` sequences.

    n_ctx: tokens of a sequence. Raises NoMemory, and as `Assembly` does; smaller contexts may then be created.
    """

    def __init__(
        self,
        models: Models,
        n_slots: int,
        n_ctx: int,
        layout: Layout,
        options: SideOptions = SideOptions(),  # noqa: B008 - frozen
    ) -> None:
        self.n_slots, self.n_ctx, self.layout = n_slots, n_ctx, layout
        self.target = models.target
        self.drafter = models.parts.drafter
        flash = models.flash(1 if layout.each else n_slots, n_ctx)
        own = self._replace_context(models.requested_rows, flash=flash)
        self.n_batch = int(llama_cpp.llama_n_batch(own.ctx))
        self._n_ubatch = int(llama_cpp.llama_n_ubatch(own.ctx))
        self.assembly = Assembly(self.target, models.parts, options, n_seq=n_slots, n_ctx=n_ctx)
        self.engine, self.loop = self.assembly.engine, self.assembly.loop

    @property
    def copied(self) -> dict[Role, Any]:
        """Contexts whose KV cache is parked. A draft that reads the target's states is left out: it needs only recent tokens."""
        sides = zip((Role.DRAFT, Role.COMPANION), self.assembly.models)
        found = {role: side.context for role, side in sides if not side.reads_states}
        return {Role.TARGET: self.target.ctx, **found}

    def fill_rows(self, n_answering: int) -> int:
        """Prompt tokens that fit the next decode. With answers, as many as fit one pass with them."""
        if n_answering:
            return min(self._n_ubatch, self.n_batch) - n_answering
        return self.n_batch

    def draft_rows(self, n_answering: int, n_running: int, filled: int) -> int:
        """Longest draft of each of `n_answering` sequences beside `filled` prompt tokens.

        n_running: active sequences, including those in prefill.
        """
        if self.layout.each and n_running > FEW:
            return 0  # unequal rows of streams split into several passes
        return max(0, (self.loop.n_batch - filled) // max(1, n_answering) - 1)

    def _replace_context(self, requested_rows: tuple[int, int], *, flash: bool) -> Any:
        """Replace the small context that the target was loaded with by one for all sequences.

        requested_rows: the caller's n_batch and n_ubatch, 0 for defaults.
        """
        target = self.target
        params = target.context_params
        params.n_ctx, params.n_seq_max = self.layout.cells, self.n_slots
        params.kv_unified = not self.layout.each
        params.flash_attn_type = flash_type(flash)
        # llama_cpp capped them to the small context
        n_batch, n_ubatch = requested_rows
        params.n_ubatch = n_ubatch or params.n_ubatch
        params.n_batch = max(params.n_ubatch, n_batch, _ROWS_A_SEQUENCE * self.n_slots)
        target._ctx.close()  # noqa: SLF001 - llama_cpp makes contexts for one sequence only
        try:
            target._ctx = internals.LlamaContext(  # noqa: SLF001
                model=target._model,  # noqa: SLF001
                params=params,
                verbose=target.verbose,
            )
        except ValueError as error:
            raise NoMemory(
                f"no memory for a context of {self.layout.cells} tokens",
                "lower --parallel, --max-tokens or -c",
            ) from error
        self._adapt()
        return target._ctx  # noqa: SLF001

    def _adapt(self) -> None:
        """Apply the old context's LoRA adapter to the new one."""
        target = self.target
        adapter = target._lora_adapter  # noqa: SLF001
        if adapter is None:
            return
        adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
        scales = (llama_cpp.llama_cpp.ctypes.c_float * 1)(target.lora_scale)
        if llama_cpp.llama_set_adapters_lora(target._ctx.ctx, adapters, 1, scales):  # noqa: SLF001
            raise EngineError(f"the LoRA adapter {target.lora_path} cannot be used")

    def close(self) -> None:
        """Free engine, draft and companion; the target's context goes with the target."""
        self.assembly.close()


def open_contexts(
    models: Models,
    n_slots: int,
    n_ctx: int,
    needs: Sequence[int],
    options: SideOptions,
    *,
    most: int | None,
    must_pool: bool,
    must_stream: bool,
) -> Contexts:
    """Create contexts for `n_slots` sequences, or for half as many, and so on, until memory suffices.

    most: limit on KV cells; None to insist on `n_slots`. must_pool, must_stream: rule the other layout out. Raises NoMemory.
    """
    few = FEW if models.on_cpu else 1  # drafts of so many gain more than streams
    while True:
        streams = not must_pool and n_slots > few
        layout = lay_out(n_slots, n_ctx, needs, streams=streams, must_stream=must_stream)
        last = most is None or n_slots == 1
        try:
            if last or layout.cells <= (most or 0):
                return Contexts(models, n_slots, n_ctx, layout, options)
        except NoMemory:
            if last:
                raise
        n_slots //= 2
        log.warning(
            "there is no memory for %d answers at once; %d run instead", 2 * n_slots, n_slots
        )
