"""How llama-cpp-python's calls are made here: their arguments, what they add to an answer's options, and what they return."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import Parameter, isfunction, signature
from typing import Any, TypeAlias
from weakref import ref

import llama_cpp
from typing_extensions import NotRequired, TypedDict

from pyspec.engine.options import AnswerOptions, Speculation
from pyspec.sampling.options import Sampling
from pyspec.text.parts import SpeculationBlock

IdStream: TypeAlias = Generator[int, None, None]  # what `generate` returns

_MORE = [f for f in fields(Sampling) if f.name.startswith(("dry_", "xtc_", "dynatemp_"))]
"""The fields of `Sampling` that llama-cpp-python has no arguments for."""


class Method:
    """How a method of `llama_cpp.Llama` is called here: as there, then with `ours` and the samplers that it lacks, by keyword."""

    def __init__(self, name: str, **ours: str) -> None:
        theirs = signature(getattr(llama_cpp.Llama, name))
        more: list[tuple[str, Any, Any]] = [(name, None, kind) for name, kind in ours.items()]
        more += [(f.name, f.default, f.type) for f in _MORE]
        made = [Parameter(n, Parameter.KEYWORD_ONLY, default=d, annotation=k) for n, d, k in more]
        self.name, self._ours = name, tuple(ours)
        self.signature = theirs.replace(parameters=[*theirs.parameters.values(), *made])

    def read(self, *args: Any, **options: Any) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
        """A call's arguments for llama-cpp-python, the samplers that it lacks and that are in use, and ours. Raises TypeError."""
        try:
            bound = self.signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        given = dict(bound.arguments)
        del given["self"]
        used = {f.name: each for f in _MORE if (each := given.pop(f.name)) != f.default}
        return given, used, [given.pop(name) for name in self._ours]


_RETIRED = {"f16_kv", "low_vram", "mul_mat_q", "n_gqa", "n_parts", "rms_norm_eps"}
"""Arguments of earlier llama-cpp-pythons, which libraries still pass; they are ignored, as llama-cpp-python does."""


def refuse_unknown(kind: type, names: Iterable[str], made: type | None = None) -> None:
    """Raise TypeError for a name that no constructor of a class and its bases, or those of `made`, takes: it would be ignored."""
    mro = (*kind.__mro__, *(made.__mro__ if made else ()))
    inits: list[Any] = [vars(each).get("__init__") for each in mro]
    known = {name for init in inits if isfunction(init) for name in signature(init).parameters}
    for name in names:
        if name not in known | _RETIRED:
            near = get_close_matches(name, known, n=1)
            more = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{kind.__name__} has no argument {name!r}{more}")


@dataclass
class Completion:
    """What a llama-cpp-python completion needs beyond what its loop passes to `generate`: it is that loop's stopping criterion.

    If a generator ends before that loop asked for the end, the loop throws its text away, unless a stopping criterion stops
    there. So this object stands in for the call's own `criteria`, and stops where the answer ended by itself.
    """

    options: AnswerOptions
    sampling: Mapping[str, Any]  # fields of `Sampling` that `generate` has no arguments for
    criteria: Any
    reason: str | None = None  # why the answer ended; None if llama-cpp-python knows
    # what its `generate` returned, None before; a weak reference, since it ends when that loop lets go of it
    answer: ref[IdStream] | None = None

    def close(self) -> None:
        """Put the answer away, whoever still holds it."""
        if self.answer is not None and (answer := self.answer()) is not None:
            answer.close()

    def ends(self, ids: Any, logits: Any) -> bool:
        """Whether the call's own criteria end the answer after these tokens."""
        return bool(self.criteria is not None and self.criteria(ids, logits))

    def __call__(self, ids: Any, logits: Any) -> bool:
        return self.ends(ids, logits) or self.reason is not None


# -- for editors and type checkers: OpenAI's forms, with what pyspec adds -----------------------------------------------------


class TokenUsage(TypedDict):
    """Tokens of prompt and answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CalledFunction(TypedDict):
    """A function and its arguments as JSON; of a chunk, a part of both."""

    name: NotRequired[str]
    arguments: NotRequired[str]


class ToolCall(TypedDict):
    """A call. index: its place, in a chunk."""

    id: NotRequired[str]
    type: NotRequired[str]
    function: CalledFunction
    index: NotRequired[int]


class AnswerMessage(TypedDict):
    """An answer of a chat; content is None beside calls alone."""

    role: str
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class _Choice(TypedDict):
    index: int
    logprobs: NotRequired[dict[str, Any] | None]
    finish_reason: str | None


class ChatChoice(_Choice):
    """One answer. reasoning_cut: it ended inside its reasoning."""

    message: AnswerMessage
    reasoning_cut: NotRequired[bool]


class MessageDelta(TypedDict):
    """What a chunk adds to a message."""

    role: NotRequired[str]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChunkChoice(_Choice):
    """A chunk of one answer."""

    delta: MessageDelta


class TextChoice(_Choice):
    """A text, or a piece of it."""

    text: str


class _Completion(TypedDict):
    id: str
    object: str
    created: int
    model: str


class ChatAnswer(_Completion):
    """What `create_chat_completion` returns."""

    choices: list[ChatChoice]
    usage: TokenUsage
    speculation: SpeculationBlock


class ChatChunk(_Completion):
    """What `create_chat_completion` yields with `stream`; the last one has the block."""

    choices: list[ChunkChoice]
    speculation: NotRequired[SpeculationBlock]


class TextAnswer(_Completion):
    """What `create_completion` returns, and yields with `stream`, where the last chunk has the block and none the usage."""

    choices: list[TextChoice]
    usage: NotRequired[TokenUsage]
    speculation: NotRequired[SpeculationBlock]


class SamplerOptions(TypedDict, total=False):
    """Options of everything that generates; `Sampling` explains them."""

    top_p: float
    top_k: int
    min_p: float
    typical_p: float
    presence_penalty: float
    frequency_penalty: float
    repeat_penalty: float
    tfs_z: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    logits_processor: Any
    grammar: Any
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float


class IdOptions(SamplerOptions, total=False):
    """Options of `generate`."""

    temp: float
    reset: bool
    penalize_nl: bool
    stopping_criteria: Any


class SharedOptions(SamplerOptions, total=False):
    """Options of completions and chats."""

    temperature: float
    stop: str | list[str] | None
    seed: int | None
    max_tokens: int | None
    model: str | None
    logit_bias: dict[int, float] | None
    speculation: Speculation | None


class ChatOptions(SharedOptions, total=False):
    """Options of chats."""

    functions: list[Any] | None
    function_call: Any
    tools: list[Any] | None
    tool_choice: Any
    response_format: Any
    logprobs: bool | None
    top_logprobs: int | None
    chat_template_kwargs: Mapping[str, Any] | None


class TextOptions(SharedOptions, total=False):
    """Options of completions."""

    suffix: str | None
    logprobs: int | None
    echo: bool
    stopping_criteria: Any
