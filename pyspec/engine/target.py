"""The target: a `llama_cpp.Llama` that no model file can crash; files are tried first, texts and templates are guarded."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp

from pyspec.engine.offload import (
    address_of,
    checked_experts,
    context_of,
    expert_patterns,
    fit_layers,
    overrides_for,
    place_on,
    requested_layers,
    rough_layers,
    trial_layers,
)
from pyspec.errors import ContextOverflow, EngineError, ModelInvalid
from pyspec.gguf.check import Loading, check_fitting, check_model
from pyspec.gguf.header import check_adapter, facts_of, header_of_parts, shape_of
from pyspec.gguf.kinds import most_positions, n_heads, no_decoder, refuse_other_kinds
from pyspec.machine import AUTO, parse_devices
from pyspec.machine.attention import flash_pays
from pyspec.machine.devices import device_array, layer_devices
from pyspec.machine.files import show, size_of
from pyspec.machine.machine import address_space_left, default_threads
from pyspec.machine.others import file_name_of
from pyspec.sampling.options import check_cache_type, check_overrides, check_ranges, is_quantised
from pyspec.text.render import DEFAULT, KEY, Renderer, templates_of
from pyspec.vocab import GuardedTokenizer, forget_vocabulary

if TYPE_CHECKING:
    from pyspec.text.answer import Speech

log = logging.getLogger("pyspec")

_BESIDE_WEIGHTS = 512 << 20
"""Address space reserved for a small context, buffers and threads besides the weights: an estimate."""

SNAPSHOTS = 8
"""States that a hybrid model keeps of its last decode, which limits its drafts; each takes as much memory as the state."""


class TargetLlama(llama_cpp.Llama):  # type: ignore[misc]  # llama_cpp is untyped
    """A `llama_cpp.Llama` whose file is first loaded in a child process, unless it was seen before.

    trust: read only the file's header instead. extra_buffers: whether llama.cpp may copy weights into its own layouts (AMX,
    repacking): "on", "off", or "auto", which is on unless that crashes on this machine. n_threads and n_threads_batch: if neither
    is given, as many as this process may really use, and fewer while other programs need the processors. flash_attn: True,
    False (llama_cpp.Llama's default), or "auto" for what was measured to be faster here.

    snapshots: states that a hybrid model keeps, if llama.cpp can; without them nothing can be drafted for it. head: load the
    next-token head (MTP) that the file may have; `has_head` says whether it did. n_gpu_layers: a number, -1 for all, or "auto"
    for as many as fit on `devices` (names as `pyspec info` lists them; all by default), with `room_for` (cells of KV cache,
    sequences; by default n_ctx and one).

    n_cpu_moe: of a mixture, the first layers whose experts stay in main memory, -1 for all; `experts` says what came of it.

    chat_template: None for the file's own (plain words if it has none), the name of one of its templates, a path, or "none" for
    plain words. template_args: its variables for all chats, such as {"enable_thinking": False}.

    template: turns messages into the tokens of a prompt; it is rendered in a child process with limits. Raises ModelNotFound,
    ModelUnreadable, ModelInvalid, ModelRejected, OptionError, or EngineError if memory does not suffice.
    """

    tokenizer_: Any

    def __init__(
        self,
        model_path: str,
        *,
        trust: bool = False,
        extra_buffers: str = "auto",
        snapshots: int = SNAPSHOTS,
        head: bool = False,
        devices: str | Iterable[str] | None = None,
        room_for: tuple[int, int] | None = None,
        chat_template: str | None = None,
        template_args: Mapping[str, Any] | None = None,
        n_cpu_moe: int = 0,
        **kwargs: Any,
    ) -> None:
        # the base class closes it, even if the file is refused below
        self._stack = contextlib.ExitStack()
        layers = kwargs.get("n_gpu_layers", 0)
        self.fits_itself = layers == AUTO
        kwargs["n_gpu_layers"] = requested_layers(layers)
        check_ranges(kwargs)
        check_cache_type(kwargs.get("type_v"), bool(kwargs.get("flash_attn")))
        embedding, vocab_only = (bool(kwargs.get(mode)) for mode in ("embedding", "vocab_only"))
        overrides = check_overrides(kwargs.get("kv_overrides"))
        if not vocab_only:
            refuse_other_kinds(Path(model_path), embedding=embedding, overrides=dict(overrides))
        self.adapts_threads = not (kwargs.get("n_threads") or kwargs.get("n_threads_batch"))
        kwargs["n_threads"] = kwargs.get("n_threads") or default_threads()
        kwargs["n_threads_batch"] = kwargs.get("n_threads_batch") or kwargs["n_threads"]
        self.has_head = head and n_heads(Path(model_path)) > 0
        self._most_positions = most_positions(Path(model_path))
        kwargs |= self._sizes(Path(model_path), kwargs)
        self.trust, self._snapshots = trust, min(snapshots, _most_states(kwargs))
        self.devices = parse_devices(devices)
        self._chosen = layer_devices(self.devices) if layers != 0 or self.devices else []
        kwargs["flash_attn"] = self._flash(Path(model_path), kwargs)
        self._device_array = device_array(self._chosen)
        self.experts = checked_experts(n_cpu_moe, Path(model_path))
        self.loading = replace(
            self._loading(model_path, kwargs),
            extra_buffers=extra_buffers,
            vocab_only=vocab_only,
            embedding=embedding,
            head=self.has_head,
            overrides=overrides,
        )
        if self.fits_itself:
            kwargs["n_gpu_layers"] = self._fitting(model_path, kwargs, room_for)
        else:
            self._may_use_extra = check_model(model_path, trust, self.loading)
        self._overrides = overrides_for(self.experts)
        self._hidden: dict[str, str] | None = {}
        renderer = self._load_and_render(model_path, kwargs)
        # garbage collection finalises in any order: keep model and context alive until this object has closed itself
        weakref.finalize(self, lambda *_: None, self._model, self._ctx).atexit = False
        self.remembers = vocab_only or bool(llama_cpp.llama_get_memory(self.ctx))
        if not self.remembers and not embedding:
            raise no_decoder(Path(model_path))
        self._open_chats(kwargs, (chat_template, template_args, renderer))

    def _load_and_render(self, model_path: str, kwargs: dict[str, Any]) -> Renderer:
        """Load the model, and meanwhile start the child process that renders its templates."""
        renderer = Renderer()
        if not (self.loading.vocab_only or self.loading.embedding):
            renderer.start()
        try:
            self._load(model_path, kwargs)
        except BaseException:
            renderer.close()  # the exception's traceback keeps it
            raise
        self._stack.callback(renderer.close)
        if self.loading.embedding:
            # longer texts are cut; the positions that rounding added are not in the model
            self.n_batch = min(kwargs["n_batch"], self.n_ctx())
        return renderer

    def _flash(self, path: Path, kwargs: Mapping[str, Any]) -> bool:
        """Whether flash attention is on; for "auto" whichever was measured to be faster, on where there is no choice."""
        flash = kwargs.get("flash_attn", False)
        must = self._chosen or kwargs.get("embedding") or kwargs.get("vocab_only")
        if flash != AUTO or must or is_quantised(kwargs.get("type_v")):
            return bool(flash)
        return flash_pays(
            shape_of(path),
            kwargs["n_ctx"],
            kwargs["n_threads"],
            n_ubatch=kwargs.get("n_ubatch", 512),
            swa_full=kwargs.get("swa_full") is not False,
        )

    def _loading(self, model_path: str, kwargs: Mapping[str, Any]) -> Loading:
        """What llama_cpp.Llama's own arguments say of the load, and where layers go in the trial."""
        layers = kwargs["n_gpu_layers"]
        if self.fits_itself and self._chosen:
            layers = rough_layers(header_of_parts(Path(model_path)), self._chosen)
        return Loading(
            n_gpu_layers=trial_layers(layers, self._chosen),
            devices=self.devices,
            split_mode=kwargs.get("split_mode", llama_cpp.LLAMA_SPLIT_MODE_LAYER),
            main_gpu=kwargs.get("main_gpu", 0),
            tensor_split=tuple(kwargs.get("tensor_split") or ()),
            tensors=expert_patterns(self.experts) if self._chosen else (),
            offload_kqv=kwargs.get("offload_kqv", True),
            n_ctx=kwargs["n_ctx"],
            n_threads=kwargs["n_threads"],
            flash_attn=kwargs["flash_attn"],
            type_k=kwargs.get("type_k"),
            type_v=kwargs.get("type_v"),
            lora=_adapter_of(kwargs),
        )

    def _fitting(
        self, model_path: str, kwargs: Mapping[str, Any], room_for: tuple[int, int] | None
    ) -> int:
        """Try the file; returns the layers for devices, 0 if there are none or they cannot use it."""
        self._may_use_extra, may = check_fitting(model_path, self.trust, self.loading)
        if not (may and self._chosen) or kwargs.get("vocab_only"):
            return 0
        params = llama_cpp.llama_model_default_params()
        place_on(params, self._device_array, kwargs)
        params.use_extra_bufts, params.load_mtp = self._may_use_extra, self.has_head
        cells, sequences = room_for or (kwargs["n_ctx"], 1)
        context = context_of(kwargs, cells, sequences)
        context.n_rs_seq = self._snapshots
        layers, self.experts = fit_layers(
            Path(model_path), params, context, self.devices, self.experts
        )
        return layers

    def _sizes(self, path: Path, kwargs: Mapping[str, Any]) -> dict[str, int]:
        """Sizes of the context, and with `embedding` of the batches.

        llama.cpp aborts on a text in several batches where attention is not causal, and on batches that it cannot share among all
        sequences, of which llama-cpp-python asks for as many as there may be.
        """
        n_ctx = self.capped(kwargs.get("n_ctx", 512), file_name_of(path))
        if not kwargs.get("embedding"):
            return {"n_ctx": n_ctx}
        facts = facts_of(path)
        n_ctx = n_ctx or (facts.n_ctx if facts else 0) or 512
        rows = min(kwargs.get("n_batch", 512), n_ctx)
        sequences = llama_cpp.llama_max_parallel_sequences()
        if rows > sequences:
            rows += -rows % sequences
        return {"n_ctx": max(n_ctx, rows), "n_batch": rows, "n_ubatch": rows}

    def capped(self, n_ctx: int, name: str = "") -> int:
        """Limit a context to the positions that the model has learned, with a warning."""
        most = self._most_positions
        if most is None or n_ctx <= most:
            return n_ctx
        log.warning(
            "%s has learned positions for %d tokens, so its context has that many, not %d",
            show(name or file_name_of(Path(self.model_path))), most, n_ctx,
        )  # fmt: skip
        return most

    def n_ctx(self) -> int:
        n_ctx = int(super().n_ctx())
        return min(n_ctx, self._most_positions or n_ctx)  # llama.cpp rounds it up

    def eval(self, tokens: Sequence[int]) -> None:
        """Decode tokens after those that the context holds. Raises ContextOverflow, or UnsupportedModel for an embedder."""
        if not self.remembers:
            raise no_decoder(Path(self.model_path))
        if self.n_tokens + len(tokens) > self.n_ctx():
            raise ContextOverflow(self.n_ctx(), self.n_tokens + len(tokens))
        super().eval(tokens)

    def _load(self, model_path: str, kwargs: dict[str, Any]) -> None:
        """Call llama-cpp-python's constructor; its errors get a name and a hint."""
        needed = size_of(Path(model_path)) + _BESIDE_WEIGHTS
        if address_space_left() < needed:  # ggml ends the process if an allocation fails
            raise EngineError(
                f"no memory for {model_path}: the limit on this process leaves less than {needed >> 20} MiB",
                "raise the limit (ulimit -v)",
            )
        try:
            super().__init__(model_path, **kwargs)
        except (MemoryError, RuntimeError, ValueError) as error:
            if isinstance(error, MemoryError) or "llama_context" in str(error):
                raise EngineError(
                    f"no memory for {model_path} with {kwargs['n_ctx']} tokens of context",
                    "lower n_ctx (-c)",
                ) from error
            raise ModelInvalid(f"{model_path} could not be loaded: {error}") from error

    @property
    def model_params(self) -> Any:
        """What the model is loaded with; `llama_cpp.Llama` sets it, and has no arguments for some of it."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        params.use_extra_bufts, params.load_mtp = self._may_use_extra, self.has_head
        params.tensor_buft_overrides = address_of(self._overrides)
        if self.devices:
            params.devices = ctypes.cast(self._device_array, ctypes.c_void_p)
        self._model_params = params

    @property
    def context_params(self) -> Any:
        """What the context is made with; `llama_cpp.Llama` sets it, and has no argument for snapshots."""
        return self._context_params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        params.n_rs_seq = self._snapshots  # llama.cpp makes it 0 for models that cannot use it
        self._context_params = params

    @cached_property
    def speech(self) -> Speech:
        """How the model writes reasoning and tool calls."""
        from pyspec.text.answer import Speech  # noqa: PLC0415 - for chats alone

        return Speech.of(self)

    @property
    def _lora_adapter(self) -> Any:
        """The adapter, or None; `llama_cpp.Llama` sets it, and would go on with a null pointer."""
        return self._adapter

    @_lora_adapter.setter
    def _lora_adapter(self, found: Any) -> None:
        self._adapter = found or None

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata; without templates while loading, since llama-cpp-python would compile them."""
        return self._metadata

    @metadata.setter
    def metadata(self, found: dict[str, str]) -> None:
        if self._hidden is not None:
            self._hidden = {k: v for k, v in found.items() if k.startswith(KEY)}
            found = {k: v for k, v in found.items() if k not in self._hidden}
        self._metadata = found

    def _open_chats(self, kwargs: Mapping[str, Any], chosen: tuple[Any, ...]) -> None:
        """Install our template as the only way to prompts, also under llama-cpp-python's names for chat formats from files."""
        from pyspec.text.template import ChatTemplate  # noqa: PLC0415 - who only names the class needs none

        if isinstance(self.tokenizer_, llama_cpp.LlamaTokenizer):
            self.tokenizer_ = GuardedTokenizer(self)
        # llama-cpp-python cannot compile them any more
        self._metadata = {**self._metadata, **(self._hidden or {})}
        self._hidden = None
        self.template = ChatTemplate(self, *chosen)
        self._stack.callback(self.template.close)
        self._stack.callback(forget_vocabulary, self._model.vocab)
        for name in {DEFAULT: "", **templates_of(self._metadata)}:
            self._chat_handlers[f"chat_template.{name}"] = self.template
        if not (kwargs.get("chat_format") or kwargs.get("chat_handler")):
            self.chat_format = f"chat_template.{DEFAULT}"


def _most_states(kwargs: Mapping[str, Any]) -> int:
    """How many states may be kept: llama.cpp ends the process where a batch has not two rows more."""
    return max(0, min(kwargs.get(size) or 512 for size in ("n_ctx", "n_batch", "n_ubatch")) - 2)


def _adapter_of(kwargs: Mapping[str, Any]) -> tuple[str, float] | None:
    """File and scale of the LoRA adapter, if there is one. Raises ModelError if it is invalid."""
    path = kwargs.get("lora_path")
    if not path:
        return None
    check_adapter(path)
    return str(Path(path).absolute()), float(kwargs.get("lora_scale", 1.0))
