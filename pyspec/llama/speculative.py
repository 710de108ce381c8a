"""`SpeculativeLlama`: llama-cpp-python's `Llama`, answering with speculative decoding."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import ref

import llama_cpp
from llama_cpp.llama_chat_format import LlamaChatCompletionHandler
from llama_cpp.llama_speculative import LlamaDraftModel
from llama_cpp.llama_tokenizer import BaseLlamaTokenizer
from typing_extensions import Unpack

from pyspec.engine.offload import placed
from pyspec.engine.options import OFF, AnswerOptions, Speculation
from pyspec.errors import EngineError, OptionError
from pyspec.llama import calls, generation
from pyspec.llama.calls import ChatAnswer, ChatChunk, ChatOptions, TextAnswer, TextOptions
from pyspec.llama.mirror import ClosedHandle, Mirror, closed_error
from pyspec.machine import AUTO
from pyspec.machine.others import name_of
from pyspec.sampling.chain import refuse
from pyspec.sampling.options import Noise, Sampling, check_noise, check_ranges
from pyspec.sampling.verification import Strict, Verification, check_rule
from pyspec.text.parts import SpeculationBlock, Step, plain
from pyspec.vocab import piece_reader

if TYPE_CHECKING:
    from pyspec.draft.policies import Policies
    from pyspec.engine.assembly import Assembly
    from pyspec.engine.profiles import PairMemory
    from pyspec.engine.session import Session

__all__ = ["OFF", "Speculation", "SpeculativeLlama", "install", "uninstall"]

log = logging.getLogger("pyspec")

_TEXT = calls.Method("create_completion", speculation="Speculation | None")
_CHAT = calls.Method(
    "create_chat_completion",
    speculation="Speculation | None",
    chat_template_kwargs="Mapping[str, Any] | None",
)
_IDS = calls.Method("generate")

_OF_DRAFTS = (
    "draft", "companion", "verification", "length", "sampling", "draft_n_gpu_layers", "draft_type_k", "draft_type_v",
    "draft_devices", "memory",
)  # fmt: skip
_OWN_ARGUMENTS = (
    *_OF_DRAFTS, "devices", "n_cpu_moe", "wait", "trust", "extra_buffers", "chat_template", "template_args",
)  # fmt: skip
"""What `llama_cpp.Llama` does not have."""


_PLAIN = (
    "with logits_all or embedding there are no rounds",
    "use generate, or load the model without",
)


class SpeculativeLlama(Mirror):
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
        length: How many drafted tokens are verified: "auto", "companion" or "fixed:K".
        sampling: Whose random numbers draw tokens, see `Sampling`. "coupled" is pyspec's, which drafts share: a seed gives the
            same text with any draft. "llama.cpp" gives what a `Llama` draws with that seed, with greedy drafts.
        draft_n_gpu_layers: Like `n_gpu_layers`, for draft and companion; None follows the target.
        draft_type_k: ggml's number of the KV cache's key type, for draft and companion; None is F16. `draft_type_v` is of values.
        devices: Names of the devices that may be used, as `pyspec info` lists them; None for all. `placed` says what lies where.
            `draft_devices` is the same for draft and companion; None follows the target.
        n_cpu_moe: Of a mixture, the first layers whose experts stay in main memory; -1 for all.
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

    policies: Policies

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
        sampling: Noise = "coupled",
        draft_n_gpu_layers: int | str | None = None,
        draft_type_k: int | None = None,
        draft_type_v: int | None = None,
        devices: str | Sequence[str] | None = None,
        draft_devices: str | Sequence[str] | None = None,
        n_cpu_moe: int = 0,
        wait: bool | float = True,
        memory: bool = False,
        trust: bool = False,
        extra_buffers: str = "auto",
        chat_template: str | None = None,
        template_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        given |= given.pop("kwargs")
        del given["self"], given["model_path"]
        if type(self) is SpeculativeLlama:  # libraries pass what they like to an `InstalledLlama`
            calls.refuse_unknown(SpeculativeLlama, kwargs)
        if (foreign := given.pop("draft_model")) is not None and draft == "auto":
            given["draft"] = draft = foreign
        from pyspec.screen import busy, file_of  # noqa: PLC0415 - it brings the store of models

        self._ours = {name: given[name] for name in _OWN_ARGUMENTS}
        file = file_of(model_path)
        with busy(f"loading {name_of(Path(file))}"):
            self._open(file, given)

    def _open(self, file: str, given: dict[str, Any]) -> None:
        from pyspec.engine.session import Drafts  # noqa: PLC0415 - who only names the class loads no engine

        start, own = perf_counter(), {name: given.pop(name) for name in _OF_DRAFTS}
        if given["wait"] is None:
            raise OptionError("wait is None", "use True, False or a number of seconds")
        check_ranges({"wait": given["wait"]})
        drafts = Drafts(own)
        self.verification, self.noise = own["verification"], own["sampling"]
        check_rule(self.verification)
        check_noise(self.noise)
        self._session: Session | None = None
        self.pair_memory: PairMemory | None = None
        self._noted: set[str] = set()
        super().__init__(file, **drafts.for_target | given)
        self.piece = piece_reader(self._model.vocab)
        self.last_speculation = SpeculationBlock({})
        self.last_timings: dict[str, float] = {}
        if not self.is_plain:
            try:
                drafts.join(self)
            except BaseException:
                self.close()  # the exception's traceback keeps this object, and with it the target's memory
                raise
        self.load_ms = 1e3 * (perf_counter() - start)

    @property
    def session(self) -> Session:
        """The session that holds the context's tokens. Raises EngineError once this is closed, or if it decodes plainly."""
        if self._session is None:
            raise EngineError(*_PLAIN) if self.is_plain and self.is_open else closed_error()
        return self._session

    @property
    def assembly(self) -> Assembly:
        """The loaded models and their engine. Raises EngineError once this is closed."""
        return self.session.assembly

    @property
    def placed(self) -> str:
        """What lies on which devices, in one line; empty if everything is on the CPU."""
        return placed(self, self.assembly.placed if self._session is not None else [])

    def note(self, note: str) -> None:
        """Log a note once."""
        if note and note not in self._noted:
            self._noted.add(note)
            log.warning("%s", note)

    def cancel(self) -> None:
        """Stop the answer in flight, even while it reads the prompt; safe from any thread and from a signal handler."""
        session = self._session  # another thread may close this object meanwhile
        if session is not None:
            session.cancel()
            self.answer_lock.drop()

    def close(self) -> None:
        """Free the models; may be called twice. Raises EngineBusy inside an answer of its own."""
        session = getattr(self, "_session", None)
        lock = nullcontext() if session is None else self.answer_lock.freeing(session.engine.cancel)
        with lock:
            self._session = None
            if session is not None:
                if self.pair_memory is not None:
                    self.pair_memory.keep()
                session.close()
            if hasattr(self, "_stack"):
                super().close()
                # llama-cpp-python would go on using the freed model
                self._model = self._ctx = self._batch = self.tokenizer_ = ClosedHandle()

    def __enter__(self) -> SpeculativeLlama:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        layers = {"n_gpu_layers": AUTO} if self.fits_itself else {}
        return {**state, **layers, **self._ours}

    # -- completions ---------------------------------------------------------------------------------------------------

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

    def create_completion(self, *args: Any, **options: Any) -> Any:
        """llama-cpp-python's `create_completion`. Arguments not listed are its own or fields of `Sampling`.

        Args:
            suffix: The text behind the gap that is to be filled; InputError for a model without tokens for that.
            logprobs: Needs no `logits_all` here; with `echo` the prompt is read again.
            speculation: How this call speculates; None follows the object.

        Returns:
            OpenAI's completion, or an iterator of its chunks with `stream`. It has a `speculation` block, and its finish_reason
            is "cancelled" after `cancel()`.
        """
        given, samplers, (speculation,) = _TEXT.read(self, *args, **options)
        lent, speculation = self.answer_lock.lent, self._checked(speculation)
        if (criteria := given.pop("stopping_criteria")) is not None:
            criteria = lent(criteria)
        completion = None
        if self.is_plain:
            refuse(samplers)
            if (processors := given["logits_processor"]) is not None:
                given["logits_processor"] = llama_cpp.LogitsProcessorList(map(lent, processors))
        else:
            completion = generation.completion_of(self, given, samplers, speculation, criteria)
        made = super()._create_completion(**given, stopping_criteria=completion or criteria)
        chunks = generation.chunks_of(self, completion, made)
        return chunks if given["stream"] else plain(next(chunks))

    __call__ = create_completion

    @staticmethod
    def _checked(speculation: Speculation | None) -> Speculation:
        if speculation is not None and not isinstance(speculation, Speculation):
            raise OptionError(f"speculation is {speculation!r}", "give Speculation(...) or OFF")
        return speculation or Speculation()

    # -- chats ---------------------------------------------------------------------------------------------------------

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

    def create_chat_completion(self, *args: Any, **options: Any) -> Any:
        """llama-cpp-python's `create_chat_completion`. Arguments not listed are its own or fields of `Sampling`.

        Args:
            messages: The conversation in OpenAI's form.
            speculation: How this call speculates; None follows the object.
            chat_template_kwargs: Variables of the chat template, for this call.

        Returns:
            OpenAI's chat completion, or an iterator of its chunks with `stream`; it has a `speculation` block.
        """
        given, samplers, (speculation, variables) = _CHAT.read(self, *args, **options)
        handler = self.chat_handler or self._chat_handlers.get(self.chat_format)
        if handler is not self.template:
            if speculation is not None or samplers or variables:  # it takes no arguments of ours
                raise OptionError(
                    "a chat handler of llama-cpp-python's takes no options of pyspec's",
                    "leave them out, or leave out chat_handler and chat_format",
                )
            result = super().create_chat_completion(**given)
            if isinstance(result, dict):
                return plain({**result, "speculation": self.last_speculation})
            return (generation.marked(self, chunk) for chunk in result)
        from pyspec.text.completions import ChatCompletion  # noqa: PLC0415 - for chats alone

        chat = ChatCompletion(self, given, variables)
        steps = generation.chat_steps(self, chat, given, samplers, self._checked(speculation))
        return chat.chunks(steps) if given["stream"] else plain(chat.whole(steps))

    # -- tokens --------------------------------------------------------------------------------------------------------

    def generate(
        self, tokens: Sequence[int], *args: Any, **options: Unpack[calls.IdOptions]
    ) -> calls.IdStream:
        """llama-cpp-python's `generate`. Arguments not listed are its own or fields of `Sampling`.

        Args:
            tokens: Ids of the prompt.

        Yields:
            Token ids, up to an end-of-generation token (the last one), or to the end of the context.
        """
        given, samplers, _ = _IDS.read(self, tokens, *args, **options)
        if self.model_params.vocab_only:
            raise EngineError("the model was loaded with vocab_only", "load it with its weights")
        if self.is_plain:
            refuse(samplers)
            self.note("logits_all or embedding: decoding plainly, as llama-cpp-python does")
            self.last_speculation = SpeculationBlock({})
            plain: calls.IdStream = super().generate(**given)
            return plain
        call = given["stopping_criteria"]
        its = isinstance(call, calls.Completion) and call.answer is None
        if not its:  # a caller's own, or a drafter's inside an answer
            own = None if call is None else self.answer_lock.lent(call)
            options_ = AnswerOptions(goes_on=True)
            call = calls.Completion(options_, {"noise": self.noise, **samplers}, own)
        given["temperature"] = given["temp"]
        answer_options = replace(
            call.options,
            sampling=generation.sampling_of(given, self._seed, call.sampling),
            grammar=given["grammar"],
            logits_processor=given["logits_processor"],
        )
        ids = generation.ids_of(self, tokens, answer_options, given["reset"], call, is_its=its)
        call.answer = ref(ids)
        return ids

    def steps(
        self, tokens: Sequence[int], options: Sampling | AnswerOptions | None = None, **more: Any
    ) -> Generator[Step, None, None]:
        """Answer a prompt round by round; the layer below all others. The generator may be closed early.

        Args:
            tokens: Ids of the prompt, at least one.
            options: How the target chooses tokens, or all options.
            more: Fields of `AnswerOptions`, such as max_tokens and speculation.

        Raises:
            InputError: The prompt is empty, or the grammar cannot be used.
            ContextOverflow: The prompt is longer than the context.
            EngineError: llama.cpp failed, or a logit is not finite (`NumericError`).
        """
        if more.get("speculation") is None:
            more.pop("speculation", None)
        answer = generation.Answering(self, tokens, AnswerOptions.of(options, **more))
        return self.answer_lock.held(answer)


for _method in (_TEXT, _CHAT, _IDS):
    getattr(SpeculativeLlama, _method.name).__signature__ = _method.signature


# -- in place of `llama_cpp.Llama` ------------------------------------------------------------------------------------------


class InstalledLlama(SpeculativeLlama):
    """What `llama_cpp.Llama(...)` makes after `install`: the caller's arguments take precedence over those of `install`."""

    defaults: dict[str, Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.where_possible = "draft" not in kwargs  # an error only if a draft was named
        super().__init__(*args, **{**(self.defaults or {}), **kwargs})


def _make(cls: type, *_args: object, **_kwargs: object) -> object:
    ours = cls is llama_cpp.Llama and InstalledLlama.defaults is not None
    return object.__new__(InstalledLlama if ours else cls)


def install(**defaults: Any) -> None:
    """Make `llama_cpp.Llama(...)` return a `SpeculativeLlama`, also where the class was imported before.

    Existing objects and other subclasses stay as they are. Calling it again replaces the defaults.

    Args:
        **defaults: Arguments of `SpeculativeLlama` that a library does not pass itself, such as `draft` or `verification`.

    Raises:
        OptionError: `SpeculativeLlama` has no such argument.
    """
    for name in defaults:
        if name not in signature(SpeculativeLlama.__init__).parameters:
            raise OptionError(
                f"SpeculativeLlama has no argument {name!r}", "see help(SpeculativeLlama)"
            )
    InstalledLlama.defaults = defaults
    llama_cpp.Llama.__new__ = _make


def uninstall() -> None:
    """Make `llama_cpp.Llama(...)` return its own objects again."""
    InstalledLlama.defaults = None
