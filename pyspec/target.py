"""The target as a `llama_cpp.Llama` that nothing in a model file can end: tried first, its texts and templates guarded."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import llama_chat_format

from pyspec.errors import ContextOverflow, EngineError, ModelInvalid, TemplateError
from pyspec.limits import check_ranges
from pyspec.offload import (
    AUTO,
    asked_layers,
    context_of,
    fit_layers,
    place_on,
    rough_layers,
    trial_layers,
)
from pyspec.store.check import Loading, check_model, command_of, environment_of
from pyspec.store.devices import device_array, layer_devices, parse_devices
from pyspec.store.drafts import has_head, refuse_eagle3
from pyspec.store.files import show
from pyspec.store.header import check_adapter, read_header
from pyspec.store.kinds import most_positions, no_decoder, refuse_other_kinds
from pyspec.store.machine import address_space_left, default_threads
from pyspec.text.answer import Speech
from pyspec.text.tokenizer import GuardedTokenizer

log = logging.getLogger("pyspec")

_BESIDE_WEIGHTS = 512 << 20
"""Address space kept for a small context, buffers and threads beside the weights: an estimate."""

_TEMPLATE = "tokenizer.chat_template"

SNAPSHOTS = 8
"""States that a hybrid model keeps of its last decode, and so its longest draft; each takes as much memory as the state."""


class TargetLlama(llama_cpp.Llama):  # type: ignore[misc]  # llama_cpp is untyped
    """A `llama_cpp.Llama` whose file is first loaded in a child process, if it was not seen before.

    trust: read only the file's header instead. extra_buffers: whether llama.cpp may copy weights into layouts of its own
    (AMX, repacking); "auto" says yes unless that crashes on this machine, "on" and "off" decide it.
    n_threads and n_threads_batch: as many as this process may really use, if not given.
    snapshots: states that a hybrid model keeps, where llama.cpp can; without them nothing can be drafted for it. head: load the
    next-token head (MTP) that the file may have; `has_head` says whether it did.
    n_gpu_layers: a number, -1 for all, or "auto" for as many as fit on `devices` (names as `pyspec info` lists them; all if
    not given), with `room_for` cells of KV cache and so many sequences, n_ctx and one if not given.

    A chat template in the file is rendered in a child process with limits, when a chat first needs it. Raises
    ModelNotFound, ModelUnreadable, ModelInvalid, ModelRejected, OptionError, or EngineError where memory does not suffice.
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
        **kwargs: Any,
    ) -> None:
        # the base class closes it, also when the file is refused below
        self._stack = contextlib.ExitStack()
        layers = kwargs.get("n_gpu_layers", 0)
        self.fits_itself = layers == AUTO
        kwargs["n_gpu_layers"] = asked_layers(layers)
        check_ranges(kwargs)
        embedding, vocab_only = (bool(kwargs.get(mode)) for mode in ("embedding", "vocab_only"))
        if not vocab_only:
            refuse_other_kinds(Path(model_path), embedding=embedding)
        self._most_positions = most_positions(Path(model_path))
        kwargs["n_ctx"] = self.capped(kwargs.get("n_ctx", 512), Path(model_path).name)
        kwargs["n_threads"] = kwargs.get("n_threads") or default_threads()
        kwargs["n_threads_batch"] = kwargs.get("n_threads_batch") or kwargs["n_threads"]
        self.trust = trust
        self._snapshots = snapshots
        self.devices = parse_devices(devices)
        self._chosen = layer_devices(self.devices) if layers != 0 or self.devices else []
        self._device_array = device_array(self._chosen)
        self.loading = Loading(
            **self._places(model_path, kwargs),
            n_ctx=kwargs["n_ctx"],
            n_threads=kwargs["n_threads"],
            flash_attn=bool(kwargs.get("flash_attn", False)),
            extra_buffers=extra_buffers,
            vocab_only=vocab_only,
            embedding=embedding,
        )
        self._may_use_extra = check_model(model_path, trust, self.loading)
        refuse_eagle3(Path(model_path))
        if kwargs.get("lora_path"):
            check_adapter(kwargs["lora_path"])
        self.has_head = head and has_head(Path(model_path))
        self._templates: dict[str, str] | None = {}
        if self.fits_itself:
            kwargs["n_gpu_layers"] = self._fitting(model_path, kwargs, room_for)
        self._load(model_path, kwargs)
        # a collection of garbage finalises in any order: until this object has closed itself, model and context are no garbage
        weakref.finalize(self, _let_go, self._model, self._ctx).atexit = False
        self.remembers = vocab_only or bool(llama_cpp.llama_get_memory(self.ctx))
        if not self.remembers and not embedding:
            raise no_decoder(Path(model_path))
        if isinstance(self.tokenizer_, llama_cpp.LlamaTokenizer):
            self.tokenizer_ = GuardedTokenizer(self)
        self._offer_templates(kwargs)

    def _places(self, model_path: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Where layers go in the trial."""
        layers = kwargs["n_gpu_layers"]
        if self.fits_itself and self._chosen:
            layers = rough_layers(read_header(model_path), self._chosen)
        return {
            "n_gpu_layers": trial_layers(layers, self._chosen),
            "devices": self.devices,
            "split_mode": kwargs.get("split_mode", llama_cpp.LLAMA_SPLIT_MODE_LAYER),
            "main_gpu": kwargs.get("main_gpu", 0),
            "tensor_split": tuple(kwargs.get("tensor_split") or ()),
            "offload_kqv": kwargs.get("offload_kqv", True),
        }

    def _fitting(
        self, model_path: str, kwargs: Mapping[str, Any], room_for: tuple[int, int] | None
    ) -> int:
        """Layers for devices, 0 where there are none."""
        if not self._chosen or kwargs.get("vocab_only"):
            return 0
        params = llama_cpp.llama_model_default_params()
        place_on(params, self._device_array, kwargs)
        params.use_extra_bufts, params.load_mtp = self._may_use_extra, self.has_head
        cells, sequences = room_for or (kwargs["n_ctx"], 1)
        context = context_of(kwargs, cells, sequences)
        context.n_rs_seq = self._snapshots
        return fit_layers(Path(model_path), params, context, self.devices).layers

    def capped(self, n_ctx: int, name: str = "") -> int:
        """A context of so many tokens, or of as many as the model has learned positions for, which is said."""
        most = self._most_positions
        if most is None or n_ctx <= most:
            return n_ctx
        log.warning(
            "%s has learned positions for %d tokens: so many is its context, not %d",
            show(name or Path(self.model_path).name), most, n_ctx,
        )  # fmt: skip
        return most

    def n_ctx(self) -> int:
        """Tokens that the context holds."""
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
        """llama-cpp-python's own beginning; what it raises gets a name and a hint."""
        needed = Path(model_path).stat().st_size + _BESIDE_WEIGHTS
        if address_space_left() < needed:  # ggml ends the process where an allocation fails
            raise EngineError(
                f"no memory for {model_path}: the limit on this process leaves less than {needed >> 20} MiB",
                "raise the limit (ulimit -v)",
            )
        try:
            super().__init__(model_path, **kwargs)
        except UnicodeDecodeError as error:
            raise ModelInvalid(f"{model_path} names tokens in bytes that are not UTF-8") from error
        except MemoryError as error:
            raise EngineError(
                f"no memory for {model_path} with {kwargs['n_ctx']} tokens of context",
                "lower n_ctx (-c)",
            ) from error
        except RuntimeError as error:  # its one check of its own: the adapter does not fit
            raise ModelInvalid(
                f"the LoRA adapter {kwargs.get('lora_path')} could not be put on {model_path}",
                "give one that was made for this model",
            ) from error
        except ValueError as error:
            if "context" in str(error):
                raise EngineError(
                    f"no memory for a context of {kwargs['n_ctx']} tokens",
                    "lower n_ctx (-c)",
                ) from error
            raise ModelInvalid(f"{model_path} could not be loaded: {error}") from error

    @property
    def model_params(self) -> Any:
        """What the model is loaded with; `llama_cpp.Llama` fills it, and has no argument for these."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        params.use_extra_bufts, params.load_mtp = self._may_use_extra, self.has_head
        if self.devices:
            params.devices = ctypes.cast(self._device_array, ctypes.c_void_p)
        self._model_params = params

    @property
    def context_params(self) -> Any:
        """What the context is made with; `llama_cpp.Llama` fills it, and has no argument for snapshots."""
        return self._context_params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        params.n_rs_seq = self._snapshots  # llama.cpp makes it 0 for models that have no use for it
        self._context_params = params

    @cached_property
    def speech(self) -> Speech:
        """How the model writes reasoning and calls of tools."""
        return Speech.of(self)

    @property
    def _lora_adapter(self) -> Any:
        """The adapter, or None; `llama_cpp.Llama` fills it, and would go on with a null pointer."""
        return self._adapter

    @_lora_adapter.setter
    def _lora_adapter(self, found: Any) -> None:
        self._adapter = found or None

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says of itself; while it is loaded without templates, which llama-cpp-python would compile."""
        return self._metadata

    @metadata.setter
    def metadata(self, found: dict[str, str]) -> None:
        if self._templates is not None:
            self._templates = {k: v for k, v in found.items() if k.startswith(_TEMPLATE)}
            found = {k: v for k, v in found.items() if k not in self._templates}
        self._metadata = found

    def _offer_templates(self, kwargs: dict[str, Any]) -> None:
        """Chat formats as llama-cpp-python names them, rendered elsewhere."""
        templates, self._templates = self._templates or {}, None
        self._metadata = {**self._metadata, **templates}
        for key, template in templates.items():
            name = "chat_template.default" if key == _TEMPLATE else key.removeprefix("tokenizer.")
            self._chat_handlers[name] = self._handler(template)
        chosen = kwargs.get("chat_format") or kwargs.get("chat_handler")
        if chosen is None and _TEMPLATE in templates:
            guessed = llama_chat_format.guess_chat_format_from_gguf_metadata(self._metadata)
            self.chat_format = guessed or "chat_template.default"

    def _handler(self, template: str) -> Any:
        eos, bos = self.token_eos(), self.token_bos()
        words = [self._model.token_get_text(token) if token != -1 else "" for token in (eos, bos)]
        process = TemplateProcess(template, *words)
        self._stack.callback(process.close)
        return llama_chat_format.chat_formatter_to_chat_completion_handler(
            partial(_format, process, words[0], eos)
        )


def _let_go(*_owned: object) -> None:
    """Nothing: as its arguments, model and context live until the object is collected."""


# -- chat templates of files -------------------------------------------------------------------------------------------


def _format(process: TemplateProcess, eos_text: str, eos: int, **conversation: Any) -> Any:
    """A conversation as llama-cpp-python's own Jinja formatter would give it."""
    ends = llama_cpp.StoppingCriteriaList([lambda tokens, _: tokens[-1] == eos])
    return llama_chat_format.ChatFormatterResponse(
        prompt=process.render(conversation),
        stop=[eos_text],
        stopping_criteria=ends,
        added_special=True,
    )


START_S, RENDER_S = 20.0, 2.0
ROOM = 256 << 20
"""Bytes that a rendering may take."""


class TemplateProcess:
    """One template in a child that is started by the first rendering and ended by `close`.

    A rendering has 2 seconds, 256 MiB and 1 MiB of text; the child has no files to write and dies with its parent's pipe.
    """

    def __init__(self, template: str, eos_token: str, bos_token: str) -> None:
        self._first = {
            "template": template, "eos_token": eos_token, "bos_token": bos_token, "room": ROOM,
        }  # fmt: skip
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(self, arguments: Mapping[str, Any]) -> str:
        """The prompt of a conversation. Raises TemplateError."""
        try:
            line = json.dumps(arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"the conversation is no JSON: {error}") from None
        with self._lock:
            child = self._child
            if child is None or child.poll() is not None:
                child = self._start()
            return self._ask(child, line, RENDER_S)

    def _start(self) -> subprocess.Popen[bytes]:
        self._child = child = subprocess.Popen(
            command_of("render"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment_of(gpu=False), cwd=Path(sys.executable).anchor,
        )  # fmt: skip
        self._ask(child, json.dumps(self._first), START_S)
        return child

    def _ask(self, child: subprocess.Popen[bytes], line: str, seconds: float) -> str:
        """One line to the child and its answer; a child that does not answer in time is ended."""
        timer = threading.Timer(seconds, child.kill)
        timer.start()
        try:
            reply = _exchange(child, line)
        finally:
            timer.cancel()
        if isinstance(reply, dict) and isinstance(reply.get("text"), str):
            return str(reply["text"])
        self.close()
        reason = reply.get("error") if isinstance(reply, dict) else None
        raise TemplateError(
            f"the model's own chat template cannot be used: {reason or 'it takes too long or too much memory'}",
            "give chat_format= (chatml, llama-3, gemma ...) instead",
        )

    def close(self) -> None:
        """End the child; a later rendering starts another."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(OSError), child:
                child.kill()


def _exchange(child: subprocess.Popen[bytes], line: str) -> Any:
    """The child's answer, or None where there is none."""
    try:
        if child.stdin is None or child.stdout is None:
            return None
        child.stdin.write(line.encode() + b"\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline() or b"null")
    except (OSError, ValueError, RecursionError):
        return None
