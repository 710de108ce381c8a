"""What completions and chats return, for editors and type checkers: OpenAI's forms, with what pyspec adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import NotRequired, TypedDict

from pyspec.engine.options import Speculation
from pyspec.screen.words import SpeculationBlock


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


class ChatChoice(TypedDict):
    """One answer. reasoning_cut: it ended inside its reasoning."""

    index: int
    message: AnswerMessage
    logprobs: NotRequired[dict[str, Any] | None]
    finish_reason: str | None
    reasoning_cut: NotRequired[bool]


class ChatAnswer(TypedDict):
    """What `create_chat_completion` returns."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    speculation: SpeculationBlock


class MessageDelta(TypedDict):
    """What a chunk adds to a message."""

    role: NotRequired[str]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChunkChoice(TypedDict):
    """A chunk of one answer."""

    index: int
    delta: MessageDelta
    logprobs: NotRequired[dict[str, Any] | None]
    finish_reason: str | None


class ChatChunk(TypedDict):
    """What `create_chat_completion` yields with `stream`; the last one has the block."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    speculation: NotRequired[SpeculationBlock]


class TextChoice(TypedDict):
    """A text, or a piece of it."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class TextAnswer(TypedDict):
    """What `create_completion` returns, and yields with `stream`, where the last chunk has the block and none the usage."""

    id: str
    object: str
    created: int
    model: str
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
