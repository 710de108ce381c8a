"""Records: prompts with their options; and OpenAI's form of their results.

A record that cannot be answered carries its error, so that the batch goes on and the output has a line for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pyspec.errors import InputError, OptionError
from pyspec.grammar.languages import Language
from pyspec.sampling.options import (
    MAX_TOKENS,
    OFFERED,
    Noise,
    SamplerNumbers,
    check_breakers,
    check_noise,
    check_ranges,
    numbers,
)
from pyspec.text.messages import standard
from pyspec.text.parts import Failure, RecordResult, Result
from pyspec.text.stream import check_stops

CHAT, COMPLETION = "chat", "completion"  # OpenAI's two kinds of requests and responses


class SpeculationBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request's options of speculation. length: as for `--length`. tokens: whether to return each token's source and gap."""

    enabled: bool | None = None
    verify: Literal["strict", "margin"] | None = None
    theta: float | None = None
    gap: float | None = None
    budget: float | None = None
    length: str | None = None
    confirm: int | None = None
    draft_max: int | None = None
    tokens: bool | None = None


class AnswerFields(msgspec.Struct, kw_only=True):
    """Options of an answer but for those of samplers. None: the batch's setting."""

    max_tokens: int | None = None
    seed: int | None = None
    grammar: str | None = None
    sampling: Noise | None = None
    speculation: SpeculationBody | None = None
    reasoning_budget: int | None = None


def number_fields(kind: type[SamplerNumbers] = SamplerNumbers) -> list[tuple[str, Any, None]]:
    return [(each.name, each.kind | None, None) for each in numbers(kind) if each.offered]


if TYPE_CHECKING:
    _Numbers = AnswerFields
else:
    _Numbers = msgspec.defstruct("_Numbers", number_fields(), bases=(AnswerFields,), kw_only=True)


class RequestFields(_Numbers, kw_only=True):
    """All options of an answer. Sampler options have llama-server's names."""

    logit_bias: dict[int, float] | None = None
    dry_sequence_breakers: list[str] | None = None


SAMPLER_FIELDS = (*(each.name for each in OFFERED), "logit_bias", "dry_sequence_breakers")


class Record(RequestFields, kw_only=True):
    """One prompt and its options. None leaves the batch's own setting.

    Give one of `prompt`, `messages` and `tokens`. Sampler options that are not listed have the names of `Sampling`.

    Attributes:
        id: Names the record in results; unique in a batch.
        prompt: A user's turn, or with `Settings.raw` the whole prompt.
        messages: A conversation in OpenAI's format.
        tokens: A prompt as token ids.
        system: System prompt of a `prompt`; `messages` have their own.
        max_tokens: Maximal tokens of the answer.
        seed: Seed of the answer's random numbers, 0 to 2**32 - 1.
        grammar: GBNF that the answer follows.
        sampling: Source of random numbers: "coupled" or "llama.cpp".
        reasoning_budget: Maximal tokens of reasoning, after which it is ended; -1 for no limit.
        logit_bias: Values to add to logits, by token id.
        chat_template_kwargs: Variables of the chat template.
        stop: Strings that end the answer.
        source: Name of the input file.
        line: Line of the input file, from 1.
        form: "chat" or "completion" for a line of OpenAI's batch format, in which its output is then written.
        tools: Functions that may be called, in OpenAI's format.
        language: Language of the content, in place of `grammar`.
        tool_choice: Name of the function that must be called, or "required".
        parallel: Whether several functions may be called at once.
        reasons: False asks the template for no reasoning.
        echo: Whether the answer begins with the prompt.
        suffix: A text to follow the answer, which fills the gap after `prompt`; for models with infill tokens.
        others: Names and texts of other files for infill. If not None, what exceeds the context is left out.
        prediction: A text that the answer may largely repeat; lookup drafts from it.
        logprobs: How many of the likeliest tokens a stream lists at each position; None for no log-probabilities.
        error: The reason why the record cannot be answered.
    """

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    system: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    id: str
    tokens: list[int] | None = None
    stop: list[str] | None = None
    source: str = ""
    line: int = 0
    form: str = ""
    tools: list[dict[str, Any]] | None = None
    language: Language | None = None
    tool_choice: str | None = None
    parallel: bool | None = None
    reasons: bool | None = None
    echo: bool | None = None
    suffix: str | None = None
    others: list[tuple[str, str]] | None = None
    prediction: str | None = None
    logprobs: int | None = None
    error: Failure | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the answer continues the last message: one of the model's own, without calls, and there is no grammar."""
        last = self.messages[-1] if self.messages else {}
        is_text = last.get("role") == "assistant" and not last.get("tool_calls")
        free = self.grammar is None and self.language is None and self.tool_choice is None
        return is_text and free

    @property
    def sha256(self) -> str:
        """Hash of the fields in REQUEST_FIELDS, and of what was wrong with a record that could not be read."""
        values = {name: getattr(self, name) for name in (*REQUEST_FIELDS, "error")}
        data = repr([(key, value) for key, value in values.items() if value is not None])
        return hashlib.sha256(data.encode("utf-8", "backslashreplace")).hexdigest()

    def check(self) -> None:
        """Raise InputError or OptionError where a value is outside its range."""
        prompts = [x for x in (self.prompt, self.messages, self.tokens) if x is not None]
        if len(prompts) != 1:
            raise InputError("give either prompt or messages")
        if not prompts[0] and self.suffix is None:
            what = "the prompt is" if self.messages is None else "the messages are"
            raise InputError(f"{what} empty")
        if self.suffix is not None and self.prompt is None:
            raise InputError("a suffix needs a prompt that is a text", "send it as text")
        standard(self.messages or ())
        if self.messages is not None and self.system is not None:
            raise InputError("system cannot be used with messages")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise OptionError(f"{name} is {value}", f"use {low} to {high:.10g}")
        check_noise(self.sampling)
        check_breakers(self.dry_sequence_breakers or ())
        check_ranges({name: getattr(self, name) for name in SAMPLER_FIELDS})
        check_stops(self.stop or ())


_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (0, MAX_TOKENS),
    "temperature": (0, 1e9),
    "seed": (0, 2**32 - 1),
    "reasoning_budget": (-1, MAX_TOKENS),
    "logprobs": (0, 20),
}
_ABOUT = {"id", "source", "line", "form", "prediction", "logprobs", "error"}
REQUEST_FIELDS = tuple(name for name in Record.__struct_fields__ if name not in _ABOUT)
"""Fields of a record that determine the answer. The others are its id, its place, drafting hints and what is told beside it.
Journals hash them in this order."""


def failed(index: int, record: Record, error: BaseException | Failure) -> RecordResult:
    failure = error if isinstance(error, Failure) else Failure.of(error)
    return RecordResult(index=index, id=record.id, prompt_sha256=record.sha256, error=failure)


def as_record(record: Record | str, index: int) -> Record:
    """The record itself, or one for a prompt. Raises InputError for anything else."""
    if isinstance(record, str):
        return Record(id=str(index), prompt=record)
    if not isinstance(record, Record):
        raise InputError(f"record {index} is a {type(record).__name__}", "give texts or Records")
    return record


def unique(records: Iterable[Record]) -> Iterator[Record]:
    """The same records. A duplicate of an id gets an error, and its place as a new id."""
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            what = f"{record.source}, line {record.line}: id {record.id[:80]!r} is used twice"
            record.id, record.error = f"{record.source}:{record.line}", Failure.of(InputError(what))
            while record.id in seen:
                record.id += "'"
        seen.add(record.id)
        yield record


# -- OpenAI's form ------------------------------------------------------------------------------------------------------


def choice_of(form: str, index: int, result: Result) -> dict[str, Any]:
    reason = openai_reason(result.finish_reason)
    if form == COMPLETION:
        return {"index": index, "text": result.text, "logprobs": None, "finish_reason": reason}
    message = result.message()
    choice = {"index": index, "message": message, "logprobs": None, "finish_reason": reason}
    return {**choice, "reasoning_cut": True} if result.reasoning_cut else choice


def openai_reason(reason: str | None) -> str | None:
    """A finish reason that OpenAI has: it knows no "context" and "cancelled", and "length" is closest."""
    return {"context": "length", "cancelled": "length"}.get(reason or "", reason)


def body_of(
    form: str, name: str, model: str, created: int, choices: list[dict[str, Any]]
) -> dict[str, Any]:
    kind = "chat.completion" if form == CHAT else "text_completion"
    return {"id": name, "object": kind, "created": created, "model": model, "choices": choices}
