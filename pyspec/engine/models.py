"""Draft and companion models: loaded through llama-cpp-python, checked against the target's vocabulary, and tried beside it."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import _internals as internals

from pyspec._lib import address
from pyspec.engine.offload import (
    PlacedModel,
    address_of,
    count_placeable,
    fit_layers,
    overrides_for,
    requested_layers,
    rough_layers,
    trial_layers,
)
from pyspec.errors import DraftMismatch, ModelInvalid, ModelRejected, NoMemory, UnsupportedModel
from pyspec.gguf.check import Loading, check_fitting, check_model, ships
from pyspec.gguf.header import Facts, facts_of, header_of_parts
from pyspec.gguf.kinds import ASSISTANT, MTP, States, most_positions, refuse_other_kinds
from pyspec.machine import AUTO, parse_devices
from pyspec.machine.child import run_child
from pyspec.machine.devices import device_array, layer_devices
from pyspec.machine.files import recall, remember, show, stamp
from pyspec.machine.machine import engine_build, has_amx, processor
from pyspec.machine.others import file_name_of, name_of
from pyspec.sampling.options import MAX_DRAFT, check_cache_type, check_ranges

STATE_ROWS = 64
"""Rows that an EAGLE-3 draft computes at once: each takes n_vocab floats of working memory."""


@dataclass(frozen=True)
class SideOptions:
    """Where a draft or companion runs; None follows the target."""

    n_gpu_layers: int | str | None = None  # a number or "auto"
    devices: tuple[str, ...] | None = None
    # None means F16: this cache is small, and quantised types need heads of 32 entries
    type_k: int | None = None
    type_v: int | None = None

    @classmethod
    def of(
        cls,
        n_gpu_layers: int | str | None,
        devices: str | Sequence[str] | None,
        kinds: tuple[int | None, int | None],
    ) -> SideOptions:
        """Read the options of a call that are named `draft_...`. Raises OptionError."""
        check_ranges({"draft_n_gpu_layers": requested_layers(n_gpu_layers)})
        check_ranges(dict(zip(("draft_type_k", "draft_type_v"), kinds)))
        named = None if devices is None else parse_devices(devices)
        return cls(n_gpu_layers, named, *kinds)


class SideModel:
    """A small model with its own context, configured like the target's.

    A next-token head has no file of its own: it is a layer of the target's model, run in a second context.

    Args:
        n_seq: sequences of its context.
        states: how it reads the target's states, None if it does not.
        n_ctx: positions that a sequence may use; the target's context by default.

    Raises:
        ModelInvalid: it does not load.
        DraftMismatch: its vocabulary differs from the target's.
        UnsupportedModel: this kind of model cannot draft here.
        NoMemory: there is no room for its context.
    """

    def __init__(
        self,
        path: Path,
        target: Any,
        options: SideOptions = SideOptions(),
        n_seq: int = 1,
        states: States | None = None,
        *,
        n_ctx: int | None = None,
    ) -> None:
        self.path = path
        self._n_ctx = target.n_ctx() if n_ctx is None else n_ctx
        self.reads_states = states is not None
        self._owned = states is None or not states.inside
        self._n_gpu_layers = target.model_params.n_gpu_layers
        self._experts = target.experts
        params = context_params(target, options, n_seq)
        if states is not None:
            check_pair(path, target, states)
            _read_states(params, target, states)
        self._model = self._load(target, options, params, states) if self._owned else target._model
        try:
            if states is None and not can_roll_back(self._model.model):
                # a second sequence for each: the engine keeps a state there to roll back to (ps_ctx.c)
                params.n_seq_max *= 2
                # or each sequence would have half of the cells, and copying one would move them
                params.kv_unified = True
            self._ctx = self._make_context(params, target.verbose)
            if states is not None and states.block is not None and not states.block.causal:
                llama_cpp.llama_set_causal_attn(self._ctx.ctx, False)
        except BaseException:
            self._free()
            raise

    def _load(self, target: Any, options: SideOptions, params: Any, states: States | None) -> Any:
        if states is None:
            refuse_other_kinds(self.path)
            most = most_positions(self.path)
            if most is not None and most < self._n_ctx:
                raise UnsupportedModel(
                    f"{file_name_of(self.path)} has learned positions for {most} tokens, fewer than the context of {self._n_ctx}",
                    f"use -c {most // 256 * 256} (n_ctx), or another model beside the target",
                )
        facts = self._check_vocabulary(Path(target.model_path))
        head = states is not None and states.kind == MTP
        loaded = self._loaded_with(target, options, params, head=head)
        if facts is not None:
            loaded.kv_overrides = _no_vocabulary(facts)
        try:
            return internals.LlamaModel(
                path_model=str(self.path), params=loaded, verbose=target.verbose
            )
        except ValueError as error:
            raise ModelInvalid(f"{self.path} could not be loaded: {error}") from error

    def _loaded_with(self, target: Any, options: SideOptions, context: Any, *, head: bool) -> Any:
        """Model parameters like the target's, after the same trial that the target had; they point into this object.

        context: parameters of its context, to compute what fits. head: the file holds next-token heads only. Raises ModelError,
        or OptionError for an unknown device.
        """
        own, layers = target.model_params, options.n_gpu_layers
        params = llama_cpp.llama_model_default_params()
        fits = layers == AUTO or (layers is None and target.fits_itself)
        params.n_gpu_layers = own.n_gpu_layers if layers in (None, AUTO) else layers
        for name in ("split_mode", "main_gpu", "tensor_split", "load_mode"):
            setattr(params, name, getattr(own, name))
        names = target.devices if options.devices is None else options.devices
        found = layer_devices(names) if names or params.n_gpu_layers or fits else []
        self._devices, self._experts = device_array(found), 0
        if names:
            params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        # where the target works only without extra buffers, its kernels are the draft's, whose own trial may not come to them
        extra = target.loading.extra_buffers if own.use_extra_bufts else "off"
        loading: Loading = replace(
            target.loading, devices=names, head=head, type_k=options.type_k, type_v=options.type_v,
            overrides=(), lora=None, tensors=(), extra_buffers=extra,
        )  # fmt: skip
        if names != target.devices:  # the target's split is for other devices
            params.tensor_split, params.main_gpu = None, 0
            loading = replace(loading, tensor_split=(), main_gpu=0)
        path, wanted = self.path, params.n_gpu_layers
        if fits and found:
            wanted = rough_layers(header_of_parts(path), found)
        loading = replace(loading, n_gpu_layers=trial_layers(wanted, found))
        params.load_mtp = head
        if fits:
            params.use_extra_bufts, may = check_fitting(path, target.trust, loading)
            params.n_gpu_layers = 0
            if may and found:
                params.n_gpu_layers, self._experts = fit_layers(path, params, context, names)
        else:
            params.use_extra_bufts = check_model(path, target.trust, loading)
        self._n_gpu_layers, self._overrides = params.n_gpu_layers, overrides_for(self._experts)
        params.tensor_buft_overrides = address_of(self._overrides)
        return params

    def _check_vocabulary(self, target: Path) -> Facts | None:
        """Raise DraftMismatch for a file with other tokens than the target's. Returns its facts, None if it is no model."""
        ours, theirs = facts_of(target), facts_of(self.path)
        if theirs is None or ours is None:
            return None
        one, two = ours.vocabulary, theirs.vocabulary
        if what := one.difference(two) if one and two else "type of tokenizer":
            raise DraftMismatch(
                f"{file_name_of(self.path)} differs from the target in its {what}",
                "use --draft none, or a draft with the target's tokenizer",
            )
        return theirs

    def _make_context(self, params: Any, verbose: bool) -> Any:
        try:
            return internals.LlamaContext(model=self._model, params=params, verbose=verbose)
        except ValueError as error:
            raise NoMemory(
                f"no memory for a context of {params.n_ctx} tokens of {file_name_of(self.path)}",
                "lower n_ctx (-c), or go without it (--draft none)",
            ) from error

    def _free(self) -> None:
        if self._owned:
            self._model.close()

    @property
    def placed(self) -> PlacedModel:
        """Where its layers were meant to go; the target's own placement for its next-token head."""
        most = count_placeable(self._model.model)
        return PlacedModel(name_of(self.path), int(self._n_gpu_layers), most, self._experts)

    @property
    def context(self) -> int:
        """Address of the llama_context."""
        return address(self._ctx.ctx)

    @property
    def model(self) -> int:
        """Address of the llama_model."""
        return address(self._model.model)

    def close(self) -> None:
        self._ctx.close()
        self._free()


def can_roll_back(model: Any) -> bool:
    """Whether a model's memory can drop its tail without snapshots: recurrent states cannot."""
    return not (llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model))


def rows_at_once(target: Any) -> int:
    """Most rows of a decode that has drafts.

    With a sliding window, those of one pass: a later one may overwrite what lies behind the window of the drafts before it, which
    the sequence needs again when these are rejected.
    """
    most = int(llama_cpp.llama_n_batch(target.ctx))
    slides = llama_cpp.llama_model_n_swa(target.model) > 0
    return min(most, int(llama_cpp.llama_n_ubatch(target.ctx))) if slides else most


def longest_draft(target: Any) -> int:
    """Drafted tokens that a target's context can roll back after a verify; 0 for a recurrent one without snapshots."""
    if can_roll_back(target.model):
        return MAX_DRAFT
    return min(MAX_DRAFT, int(llama_cpp.llama_n_rs_seq(target.ctx)))


_ROPE = (
    "rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
    "yarn_beta_slow", "yarn_orig_ctx",
)  # fmt: skip
"""Settings that scale positions; by default each file has its own."""


def context_params(target: Any, options: SideOptions, n_seq: int) -> Any:
    """Context parameters of a side model: the target's window, threads and rope, but its own KV types."""
    params = llama_cpp.llama_context_default_params()
    own = target.context_params
    params.n_ctx, params.n_batch, params.n_ubatch = own.n_ctx, own.n_batch, own.n_ubatch
    params.n_seq_max = n_seq
    params.kv_unified = own.kv_unified
    params.n_threads, params.n_threads_batch = own.n_threads, own.n_threads_batch
    params.offload_kqv, params.op_offload = own.offload_kqv, own.op_offload
    params.flash_attn_type = own.flash_attn_type
    params.no_perf = True
    for name in _ROPE:  # if the target's positions are scaled, its drafts must follow
        setattr(params, name, getattr(own, name))
    flash = own.flash_attn_type != llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    check_cache_type(options.type_v, flash, "draft_type_v")
    if options.type_k is not None:
        params.type_k = options.type_k
    if options.type_v is not None:
        params.type_v = options.type_v
    return params


def _read_states(params: Any, target: Any, states: States) -> None:
    """Set up a draft that may use the target's embeddings and head, and whose graph has logits for every row of a batch."""
    params.ctx_other = target.ctx
    params.n_ubatch = min(params.n_ubatch, STATE_ROWS)
    if states.kind in (MTP, ASSISTANT):
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    if states.kind == ASSISTANT:  # its layers are views of the target's cells
        params.type_k, params.type_v = target.context_params.type_k, target.context_params.type_v
    if states.block is not None:  # with non-causal rows llama.cpp aborts the process on more
        params.n_batch = params.n_ubatch


def _no_vocabulary(facts: Facts) -> Any:
    """Overrides that let llama.cpp count tokens without loading a tokenizer, which takes most of a small draft's loading time."""
    overrides = (llama_cpp.llama_model_kv_override * 3)()
    kind, size, _ = overrides
    kind.key, kind.tag = b"tokenizer.ggml.model", llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR
    kind.value.val_str = b"none"
    size.key = f"{facts.architecture}.vocab_size".encode()
    size.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT
    size.value.val_i64 = facts.n_vocab
    return overrides


_SCRIPT = Path(__file__).with_name("session.py")
_MAX_CONTEXT = 512
_SECONDS, _BASE_SECONDS = 3.0, 90.0
_BYTES_PER_SECOND = 20e6


def check_pair(draft: Path, target: Any, states: States) -> None:
    """Let a child process draft with this draft and target, on the CPU, once per version of the two files.

    Where a head's sizes do not fit, llama.cpp asserts, reads out of bounds, or never ends; headers do not tell everything.
    Raises ModelRejected. Trusted targets are not tried, nor drafts that ship with pyspec but where AMX may crash.
    """
    may_crash = target.model_params.use_extra_bufts and has_amx()
    if target.trust or (ships(draft) and not states.inside and not may_crash):
        return
    loading = target.loading
    at, of = stamp(draft), stamp(Path(target.model_path))
    kind = f"{states.kind} draft of {of}, {loading.what}, {processor()}, {engine_build()}"
    if recall(kind, at) == "works":
        return
    size = at.size + of.size
    options = {
        "n_ctx": min(target.n_ctx(), _MAX_CONTEXT),
        "n_threads": loading.n_threads,
        "flash_attn": loading.flash_attn,
        "extra_buffers": "on" if target.model_params.use_extra_bufts else "off",
        "type_k": loading.type_k,
        "type_v": loading.type_v,
        "kv_overrides": dict(loading.overrides) or None,
        "seconds": _SECONDS + size / _BYTES_PER_SECOND,
    }
    name = MTP if states.inside else str(draft.absolute())
    outcome = run_child(
        "draft",
        [str(target.model_path), name, json.dumps(options)],
        script=_SCRIPT,
        timeout=_BASE_SECONDS + size / _BYTES_PER_SECOND,
    )
    if not outcome.ok:
        raise ModelRejected(
            f"{show(draft.name)} failed its trial with {show(Path(of.realpath).name)}: {outcome.reason[:300]}",
            "use another draft, or --draft lookup",
            outcome.signal,
        )
    if (stamp(draft), stamp(Path(target.model_path))) == (at, of):
        remember(kind, at, "works")
