"""`SpeculativeLlama`: llama-cpp-python's `Llama`, answering with speculative decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, overload

import llama_cpp
from llama_cpp.llama_chat_format import LlamaChatCompletionHandler
from llama_cpp.llama_speculative import LlamaDraftModel
from llama_cpp.llama_tokenizer import BaseLlamaTokenizer
from typing_extensions import Unpack

from pyspec.engine.offload import placed
from pyspec.engine.options import OFF, Speculation
from pyspec.engine.tensor_places import Overrides
from pyspec.errors import EngineError, OptionError
from pyspec.llama.generation import Generation
from pyspec.llama.options import MORE_SAMPLERS, refuse_unknown
from pyspec.llama.results import ChatAnswer, ChatChunk, ChatOptions, TextAnswer, TextOptions
from pyspec.machine import AUTO
from pyspec.machine.others import name_of
from pyspec.sampling.chain import MIN_TOP_P, Sampling, refuse
from pyspec.sampling.options import Noise
from pyspec.sampling.verification import Strict, Verification
from pyspec.screen.notebook import SpeculationBlock, model_line, shown_as
from pyspec.screen.progress import busy, file_of

_Method = TypeVar("_Method", bound=Callable[..., Any])
_NOT_ITS = {"self", "speculation", "chat_template_kwargs", "__class__", *MORE_SAMPLERS}


def arguments_for_llama(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method by name, from its locals(): they go to llama-cpp-python under the same names."""
    return {k: v for k, v in arguments.items() if k not in _NOT_ITS}


def more_samplers(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The sampler arguments that llama-cpp-python lacks and that differ from their defaults."""
    values = {name: arguments[name] for name in MORE_SAMPLERS}
    return {name: each for name, each in values.items() if each != getattr(Sampling, name)}


def signed_like(method: _Method) -> Callable[[Callable[..., Any]], _Method]:
    """Give a function the signature of `method`, for editors, type checkers and `inspect`."""
    like: Any = wraps(method, assigned=(), updated=())
    return cast("Callable[[Callable[..., Any]], _Method]", like)


__all__ = ["OFF", "Speculation", "SpeculativeLlama"]


class SpeculativeLlama(Generation):
    """A `llama_cpp.Llama` that drafts and verifies.

    All other arguments are llama-cpp-python's. Each result has a `speculation` block; `last_speculation` is that of the last
    answer. `speculation=Speculation(...)` or `speculation=OFF` changes one call. Pickling and copying load the model again, as
    for a `Llama`.

    Args:
        model_path: A file, or a name as on the command line; a model that is not here is fetched.
        n_gpu_layers: Layers on devices: a number, -1 for all, or "auto" for as many as fit into the free memory there.
        flash_attn: Flash attention: True, False (the default of a `Llama`), or "auto" for whichever is faster for this model on
            this machine, measured once. It rounds differently, so where two tokens are almost equally likely a greedy answer
            may go on with the other one.
        draft: "auto" (a shipped draft that fits, with prompt lookup in front; else lookup alone), "none", "lookup", the name or
            path of a draft GGUF (including EAGLE-3), "mtp" (the target's own next-token head), "lookup+NAME", a pyspec `Drafter`,
            or any `LlamaDraftModel` of llama-cpp-python.
        companion: A second model that scores drafts: "none", "auto" (the shipped one that fits), a name or a path. On every pair
            measured, scoring drafts gained nothing.
        verification: `Strict()` keeps the target's own text; `Margin()` is faster and changes it a little.
        length: How many drafted tokens are verified: "auto", "companion", "confidence:P" or "fixed:K".
        sampling: Whose random numbers draw tokens, see `Sampling`. "coupled" is pyspec's, which drafts share: a seed gives the
            same text with any draft. "block" accepts more, but the text depends on the drafts. "auto" is "block" for calls with
            no seed where that is faster here. "llama.cpp" gives what a `Llama` draws with that seed, with greedy drafts.
        draft_n_gpu_layers: Like `n_gpu_layers`, for draft and companion; None follows the target.
        draft_type_k: ggml's number of the KV cache's key type, for draft and companion; None is F16. `draft_type_v` is of values.
        devices: Names of the devices that may be used, as `pyspec info` lists them; None for all. `placed` says what lies where.
            `draft_devices` is the same for draft and companion; None follows the target.
        n_cpu_moe: Of a mixture, the first layers whose experts stay in main memory; -1 for all. `draft_n_cpu_moe` is the draft's.
        override_tensor: Where tensors of some names lie: "PATTERN=CPU" or a dict. `draft_override_tensor` is the draft's.
        wait: What a call does while another answer is in flight: True waits for it, as threads that share the object expect, a
            number waits at most that many seconds, and False refuses with EngineBusy. A stream keeps others waiting until it is
            read to its end, closed, or cancelled with `cancel()`, so one thread must not interleave two streams.
        memory: Whether lookup drafts from all earlier texts of this process, not only from the current one.
        trust: Skip the trial load of files not seen before.
        extra_buffers: Whether llama.cpp may copy weights into its own layouts (AMX, repacking): "on", "off", or "auto", which is
            on unless that crashes on this machine.
        chat_template: What makes prompts: None for the file's own template (plain words if it has none), the name of one of its
            templates, a path, or "none" for plain words.
        template_args: The template's variables for all chats, such as {"enable_thinking": False}.

    Raises:
        ModelNotFound: `model_path` is neither a file nor a known name.
        ModelError: The file cannot be used.
        DraftMismatch: The draft has another vocabulary. Raised before anything is generated.
        OptionError: An argument is outside its range; TypeError for one that does not exist.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_gpu_layers: int | str = 0,
        split_mode: int = llama_cpp.LLAMA_SPLIT_MODE_LAYER,
        main_gpu: int = 0,
        tensor_split: list[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: dict[str, bool | int | float | str] | None = None,
        seed: int = llama_cpp.LLAMA_DEFAULT_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = llama_cpp.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
        pooling_type: int = llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED,
        attention_type: int = llama_cpp.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool | Literal["auto"] = "auto",
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: LlamaChatCompletionHandler | None = None,
        draft_model: LlamaDraftModel | None = None,
        tokenizer: BaseLlamaTokenizer | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        verbose: bool = False,
        draft: Any = "auto",
        companion: str = "none",
        verification: Verification = Strict(),  # noqa: B008 - frozen
        length: str = "auto",
        sampling: Noise = "auto",
        draft_n_gpu_layers: int | str | None = None,
        draft_type_k: int | None = None,
        draft_type_v: int | None = None,
        devices: str | Sequence[str] | None = None,
        draft_devices: str | Sequence[str] | None = None,
        n_cpu_moe: int = 0,
        override_tensor: Overrides | None = None,
        draft_n_cpu_moe: int = 0,
        draft_override_tensor: Overrides | None = None,
        wait: bool | float = True,
        memory: bool = False,
        trust: bool = False,
        extra_buffers: str = "auto",
        chat_template: str | None = None,
        template_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = arguments_for_llama(locals())
        given |= given.pop("kwargs")
        if type(self) is SpeculativeLlama:  # libraries pass what they like to an `InstalledLlama`
            refuse_unknown(SpeculativeLlama, kwargs)
        if (foreign := given.pop("draft_model")) is not None and draft == "auto":
            given["draft"] = foreign
        self._ours = {name: given[name] for name in _OWN_ARGUMENTS}
        file = file_of(model_path)
        with busy(f"loading {name_of(Path(file))}", after_s=1.0):
            super().__init__(**given | {"model_path": file})

    @property
    def placed(self) -> str:
        """What lies on which devices, in one line; empty if everything is on the CPU."""
        sides = self.assembly.placed if self._session is not None else []
        return placed(self, sides)

    @overload
    def create_completion(
        self, prompt: str | list[int], *, stream: Literal[True], **options: Unpack[TextOptions]
    ) -> Iterator[TextAnswer]: ...
    @overload
    def create_completion(
        self, prompt: str | list[int], *, stream: bool, **options: Unpack[TextOptions]
    ) -> TextAnswer | Iterator[TextAnswer]: ...
    @overload
    def create_completion(
        self,
        prompt: str | list[int],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[TextOptions],
    ) -> TextAnswer: ...

    def create_completion(
        self,
        prompt: str | list[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - llama-cpp-python's own, never changed
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: llama_cpp.StoppingCriteriaList | None = None,
        logits_processor: llama_cpp.LogitsProcessorList | None = None,
        grammar: llama_cpp.LlamaGrammar | None = None,
        logit_bias: dict[int, float] | None = None,
        *,
        speculation: Speculation | None = None,
        dry_multiplier: float = Sampling.dry_multiplier,
        dry_base: float = Sampling.dry_base,
        dry_allowed_length: int = Sampling.dry_allowed_length,
        dry_penalty_last_n: int = Sampling.dry_penalty_last_n,
        dry_sequence_breakers: Sequence[str] = Sampling.dry_sequence_breakers,
        xtc_probability: float = Sampling.xtc_probability,
        xtc_threshold: float = Sampling.xtc_threshold,
        dynatemp_range: float = Sampling.dynatemp_range,
        dynatemp_exponent: float = Sampling.dynatemp_exponent,
    ) -> Any:
        """llama-cpp-python's `create_completion`. Arguments not listed are its own or fields of `Sampling`.

        Args:
            suffix: The text behind the gap that is to be filled; InputError for a model without tokens for that.
            logprobs: Needs no `logits_all` here; with `echo` the prompt is read again.
            speculation: How this call speculates; None follows the object.

        Returns:
            OpenAI's completion, or an iterator of its chunks with `stream`. It has a `speculation` block, and its finish_reason
            is "cancelled" after `cancel()`.
        """
        given, more = arguments_for_llama(locals()), more_samplers(locals())
        with self.binding(speculation, more):
            chunks = self._create_completion(**given)
            return chunks if stream else shown_as(next(chunks))

    @signed_like(create_completion)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The same as `create_completion`."""
        return self.create_completion(*args, **kwargs)

    @overload
    def create_chat_completion(
        self, messages: list[Any], *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> Iterator[ChatChunk]: ...
    @overload
    def create_chat_completion(
        self, messages: list[Any], *, stream: bool, **options: Unpack[ChatOptions]
    ) -> ChatAnswer | Iterator[ChatChunk]: ...
    @overload
    def create_chat_completion(
        self, messages: list[Any], *, stream: Literal[False] = ..., **options: Unpack[ChatOptions]
    ) -> ChatAnswer: ...

    def create_chat_completion(
        self,
        messages: list[Any],
        functions: list[Any] | None = None,
        function_call: Any = None,
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | list[str] | None = [],  # noqa: B006 - as above
        seed: int | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: llama_cpp.LogitsProcessorList | None = None,
        grammar: llama_cpp.LlamaGrammar | None = None,
        logit_bias: dict[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        *,
        speculation: Speculation | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        dry_multiplier: float = Sampling.dry_multiplier,
        dry_base: float = Sampling.dry_base,
        dry_allowed_length: int = Sampling.dry_allowed_length,
        dry_penalty_last_n: int = Sampling.dry_penalty_last_n,
        dry_sequence_breakers: Sequence[str] = Sampling.dry_sequence_breakers,
        xtc_probability: float = Sampling.xtc_probability,
        xtc_threshold: float = Sampling.xtc_threshold,
        dynatemp_range: float = Sampling.dynatemp_range,
        dynatemp_exponent: float = Sampling.dynatemp_exponent,
    ) -> Any:
        """llama-cpp-python's `create_chat_completion`. Arguments not listed are its own or fields of `Sampling`.

        Args:
            messages: The conversation in OpenAI's form.
            speculation: How this call speculates; None follows the object.
            chat_template_kwargs: Variables of the chat template, for this call.

        Returns:
            OpenAI's chat completion, or an iterator of its chunks with `stream`; it has a `speculation` block.
        """
        given, more = arguments_for_llama(locals()), more_samplers(locals())
        with self.binding(speculation, more), self.templating(chat_template_kwargs):
            result = super().create_chat_completion(**given)
        if isinstance(result, dict):
            return shown_as({**result, "speculation": self.last_speculation})
        return (self._marked(chunk) for chunk in result)

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: llama_cpp.LogitsProcessorList | None = None,
        stopping_criteria: llama_cpp.StoppingCriteriaList | None = None,
        grammar: llama_cpp.LlamaGrammar | None = None,
        *,
        dry_multiplier: float = Sampling.dry_multiplier,
        dry_base: float = Sampling.dry_base,
        dry_allowed_length: int = Sampling.dry_allowed_length,
        dry_penalty_last_n: int = Sampling.dry_penalty_last_n,
        dry_sequence_breakers: Sequence[str] = Sampling.dry_sequence_breakers,
        xtc_probability: float = Sampling.xtc_probability,
        xtc_threshold: float = Sampling.xtc_threshold,
        dynatemp_range: float = Sampling.dynatemp_range,
        dynatemp_exponent: float = Sampling.dynatemp_exponent,
    ) -> Generator[int, Sequence[int] | None, None]:
        """llama-cpp-python's `generate`. Arguments not listed are its own or fields of `Sampling`.

        Args:
            tokens: Ids of the prompt.
            tfs_z: Has no effect, as in llama-cpp-python 0.3.36.
            penalize_nl: Has no effect either.

        Yields:
            Token ids, up to an end-of-generation token (the last one), or to the end of the context.
        """
        given, more = arguments_for_llama(locals()), more_samplers(locals())
        if self.model_params.vocab_only:
            raise EngineError("the model was loaded with vocab_only", "load it with its weights")
        if self._plain:
            refuse(more)
            self._note("logits_all or embedding: decoding plainly, as llama-cpp-python does")
            self.last_speculation = SpeculationBlock({})
            plain: Generator[int, Sequence[int] | None, None] = super().generate(**given)
            return plain
        sampling = Sampling(
            temperature=temp, top_k=top_k, top_p=min(max(top_p, MIN_TOP_P), 1.0), min_p=min(max(min_p, 0.0), 1.0),
            typical_p=typical_p, repeat_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty, mirostat_mode=mirostat_mode, mirostat_tau=mirostat_tau,
            mirostat_eta=mirostat_eta, seed=self._seed, **more,
        )  # fmt: skip
        return self._generate(
            tokens, sampling, reset, stopping_criteria,
            grammar=grammar, logits_processor=logits_processor,
        )  # fmt: skip

    def __repr__(self) -> str:
        return model_line(self)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        layers = {"n_gpu_layers": AUTO} if self.fits_itself else {}
        return {**state, **layers, **self._ours}


_OWN_ARGUMENTS = (
    "draft", "companion", "verification", "length", "sampling", "draft_n_gpu_layers", "draft_type_k", "draft_type_v",
    "devices", "draft_devices", "n_cpu_moe", "override_tensor", "draft_n_cpu_moe", "draft_override_tensor",
    "wait", "memory", "trust", "extra_buffers", "chat_template", "template_args",
)  # fmt: skip


_defaults: dict[str, Any] | None = None


class InstalledLlama(SpeculativeLlama):
    """What `llama_cpp.Llama(...)` makes after `install`: the caller's arguments take precedence over those of `install`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.where_possible = "draft" not in kwargs  # an error only if a draft was named
        super().__init__(*args, **{**(_defaults or {}), **kwargs})


def _make(cls: type, *_args: object, **_kwargs: object) -> object:
    ours = cls is llama_cpp.Llama and _defaults is not None
    return object.__new__(InstalledLlama if ours else cls)


def install(**defaults: Any) -> None:
    """Make `llama_cpp.Llama(...)` return a `SpeculativeLlama`, also where the class was imported before.

    Existing objects and other subclasses stay as they are. Calling it again replaces the defaults.

    Args:
        **defaults: Arguments of `SpeculativeLlama` that a library does not pass itself, such as `draft` or `verification`.

    Raises:
        OptionError: `SpeculativeLlama` has no such argument.
    """
    global _defaults  # noqa: PLW0603 - the class exists once per process
    for name in defaults:
        if name not in signature(SpeculativeLlama.__init__).parameters:
            raise OptionError(
                f"SpeculativeLlama has no argument {name!r}", "see help(SpeculativeLlama)"
            )
    _defaults = defaults
    llama_cpp.Llama.__new__ = _make


def uninstall() -> None:
    """Make `llama_cpp.Llama(...)` return its own objects again."""
    global _defaults  # noqa: PLW0603 - as above
    _defaults = None
