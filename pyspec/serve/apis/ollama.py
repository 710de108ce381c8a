"""Ollama's API: chats and texts in, lines of JSON out. Streaming is its default.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from pyspec._version import __version__
from pyspec.batch.run import Batch
from pyspec.errors import InputError
from pyspec.gguf.header import facts_of
from pyspec.machine.files import known_sha256
from pyspec.requests.bodies import Body
from pyspec.requests.fields import REFUSED
from pyspec.requests.records import COMPLETION, Record, RequestFields
from pyspec.serve.apis.interface import PROMPT_TOO_LONG, Interface
from pyspec.serve.pending import Choice, PendingRequest
from pyspec.text.answer import Speech
from pyspec.text.messages import picture_refused
from pyspec.text.parts import object_of
from pyspec.text.template import ChatTemplate

LINES = "application/x-ndjson"


class OllamaOptions(RequestFields, kw_only=True):
    """A request's `options`. Those that concern loading the model are ignored: the server's operator has decided."""

    stop: str | list[str] | None = None
    num_predict: int | None = None
    mirostat: Any = None
    repeat_last_n: Any = None


_EFFORTS = ("low", "medium", "high")
_AS_MUCH_AS_FITS = -2


class OllamaBody(Body):
    """Fields of both kinds of request. format: "json" or a schema. think: whether, or how hard."""

    refused = (*(name for name in REFUSED if name != "suffix"), "logprobs", "top_logprobs")
    most_answers = 1

    options: OllamaOptions | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None  # type: ignore[assignment]
    logprobs: Any = None
    top_logprobs: Any = None
    tools: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        for key, value in asdict(self.options).items() if self.options else ():
            if value is not None:
                setattr(self, "max_tokens" if key == "num_predict" else key, value)
        if self.max_tokens == _AS_MUCH_AS_FITS:
            self.max_tokens = -1

    @property
    def streams(self) -> bool:
        """Whether the answer is to be streamed, which is the default."""
        return self.stream is not False

    @property
    def _effort(self) -> str | None:
        """How hard to think. Raises InputError."""
        if not isinstance(self.think, str):
            return None
        if self.think not in _EFFORTS:
            hint = f"use true, false, {', '.join(_EFFORTS)}"
            raise InputError(f"think is {self.think[:40]!r}", hint)
        return self.think

    def _forms(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        if self.format == "json":
            yield "format", {"type": "json_object"}
        elif isinstance(self.format, dict):
            yield "format", {"type": "json_schema", "schema": self.format}
        elif self.format:
            raise InputError(f"format is {self.format[:40]!r}", 'use "json" or a JSON schema')
        yield from super()._forms()


class OllamaChat(OllamaBody):
    """A chat. Without messages it only loads the model."""

    messages: list[dict[str, Any]] | None = None

    @property
    def unasked(self) -> dict[str, Any] | None:
        """The response to a request that only loads the model, else None."""
        return None if self.messages else _loaded(self, {"message": _message("")})

    def records(self, name: str) -> list[Record]:
        """The chat as one record. Raises InputError."""
        messages = [_turn(message) for message in self.messages or ()]
        return [self._chat(name, messages, tools=self.tools, effort=self._effort)]


class OllamaText(OllamaBody):
    """A prompt. raw: without the template. suffix: the text after the answer. Without a prompt it only loads the model."""

    refused = (*OllamaBody.refused, "template", "context")

    prompt: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    images: list[str] | None = None
    context: list[int] | None = None

    @property
    def unasked(self) -> dict[str, Any] | None:
        """The response to a request that only loads the model, else None."""
        return None if self.prompt else _loaded(self, {"response": ""})

    def records(self, name: str) -> list[Record]:
        """The prompt as one record. Raises InputError."""
        text, suffix = self.prompt or "", self.suffix or None
        turns = [{"role": "system", "content": self.system}] if self.system else []
        turns.append(_turn({"role": "user", "content": text, "images": self.images}))
        if self.raw or suffix:
            return [Record(prompt=text, suffix=suffix, form=COMPLETION, **self._shared(name))]
        return [self._chat(name, turns, effort=self._effort)]


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    """A message in OpenAI's format. Raises InputError."""
    text = message.get("content") or ""
    made = {"role": message.get("role"), "content": text}
    if message.get("images"):
        raise picture_refused()
    if message.get("thinking"):
        made["reasoning_content"] = message["thinking"]
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [_call_in(call, i) for i, call in enumerate(calls)]
    if name := message.get("tool_name") or message.get("name"):
        made["name"] = name
    return made


def _call_in(call: dict[str, Any], index: int) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function.get("arguments") or {})
    named = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id") or f"call_{index}", "type": "function", "function": named}


# -- answers out -------------------------------------------------------------------------------------------------------

_Wrap = Callable[[str, str, list[dict[str, Any]]], dict[str, Any]]


def _message(text: str, thinking: str = "", calls: list[dict[str, Any]] = []) -> dict[str, Any]:  # noqa: B006
    made: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        made["thinking"] = thinking
    if calls:
        made["tool_calls"] = [
            {"function": {"name": f["name"], "arguments": object_of(f["arguments"])}}
            for f in (call["function"] for call in calls)
        ]
    return made


def _of_chat(text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"message": _message(text, thinking, calls)}


def _of_text(text: str, thinking: str, _calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"response": text, **({"thinking": thinking} if thinking else {})}


def _frame(model: str | None, created: float, *, done: bool) -> dict[str, Any]:
    moment = datetime.fromtimestamp(created, timezone.utc).isoformat().replace("+00:00", "Z")
    return {"model": model, "created_at": moment, "done": done}


def _loaded(body: Body, nothing: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(timezone.utc).timestamp()
    return {**_frame(body.model, now, done=True), **nothing, "done_reason": "load"}


def _end(choice: Choice) -> dict[str, Any]:
    """An answer's finish reason, counts and durations in nanoseconds."""
    result, times = choice.result, choice.block["timings"]
    total, first = (int(1e6 * times[name]) for name in ("total_ms", "first_token_ms"))
    reason = "length" if result.finish_reason in ("length", "context", "cancelled") else "stop"
    return {
        "done_reason": reason,
        "total_duration": total,
        "load_duration": 0,
        "prompt_eval_count": result.usage.prompt_tokens,
        "prompt_eval_duration": first,
        "eval_count": result.usage.completion_tokens,
        "eval_duration": max(0, total - first),
        "speculation": choice.block,
    }


def _whole(wrapped: _Wrap) -> Callable[[PendingRequest, list[Choice]], dict[str, Any]]:
    def whole(pending: PendingRequest, choices: list[Choice]) -> dict[str, Any]:
        (choice,) = choices
        result = choice.result
        answer = wrapped(result.text, result.reasoning, result.calls)
        return {**_frame(_model(pending), pending.created, done=True), **answer, **_end(choice)}

    return whole


def _model(pending: PendingRequest) -> str:
    return str(pending.body.model or pending.serving.model)


def _events(wrapped: _Wrap) -> Callable[[PendingRequest], AsyncIterator[bytes]]:
    async def events(pending: PendingRequest) -> AsyncIterator[bytes]:
        """Lines as the answer grows. Calls are sent whole, before the last line."""
        choices = pending.choices()
        async for choice in pending.updates(choices):
            for made in _lines(wrapped, choice) if choice is not None else ():
                yield _line({**_frame(_model(pending), pending.created, done=False), **made})
        last = {**_frame(_model(pending), pending.created, done=True), **wrapped("", "", [])}
        yield _line({**last, **_end(choices[0])})

    return events


def _lines(wrapped: _Wrap, choice: Choice) -> Iterator[dict[str, Any]]:
    for part in choice.taken():
        if part.kind == "reasoning":
            yield wrapped("", part.text, [])
        elif part.kind in ("content", "broken") and part.text:
            yield wrapped(part.text, "", [])
    if choice.result is not None and choice.result.calls:
        yield wrapped("", "", choice.result.calls)


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def ollama_refusal(_status: int, _code: str | None, message: str) -> dict[str, Any]:
    """An error in ollama's format."""
    return {"error": message}


def broken(status: int, code: str | None, message: str) -> bytes:
    """The last line of a stream that fails."""
    return _line(ollama_refusal(status, code, message))


OLLAMA_CHATS = Interface(
    "ollama chat", "chat-", OllamaChat, _whole(_of_chat), _events(_of_chat), ollama_refusal, broken,
    media_type=LINES, ping=b"",
)  # fmt: skip
OLLAMA_TEXTS = Interface(
    "ollama text", "text-", OllamaText, _whole(_of_text), _events(_of_text), ollama_refusal, broken,
    too_long=PROMPT_TOO_LONG, media_type=LINES, ping=b"",
)  # fmt: skip


OLLAMA_VERSION = "0.12.6"
"""The version of ollama whose API is served: clients check it before they use newer features."""

_FOREVER = "2318-01-01T00:00:00Z"


def version() -> dict[str, Any]:
    """The version of the API, and of this package."""
    return {"version": OLLAMA_VERSION, "pyspec": __version__}


def tags(named: Iterable[tuple[str, Batch | None]]) -> dict[str, Any]:
    """The models that requests may name. Of a model that is not loaded, only the name is known."""
    return {"models": [_entry(name, batch) for name, batch in named]}


def loaded(named: Iterable[tuple[str, Batch]]) -> dict[str, Any]:
    return {
        "models": [
            {**_entry(name, batch), "expires_at": _FOREVER, "size_vram": 0, "context_length": batch.facts["n_ctx"]}
            for name, batch in named
        ]
    }  # fmt: skip


def _entry(name: str, batch: Batch | None) -> dict[str, Any]:
    path = None if batch is None else Path(batch.target.model_path)
    digest = "" if path is None else known_sha256(path)
    moment = datetime.fromtimestamp(0 if path is None else path.stat().st_mtime, timezone.utc)
    return {
        "name": name,
        "model": name,
        "modified_at": moment.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "size": 0 if batch is None else batch.facts["size"],
        "digest": digest,
        "details": _details(batch),
    }


def _details(batch: Batch | None) -> dict[str, Any]:
    facts = None if batch is None else facts_of(Path(batch.target.model_path))
    family = facts.architecture if facts else ""
    n_params = 0 if batch is None else batch.facts["n_params"]
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": f"{n_params / 1e9:.1f}B" if n_params >= 1e9 else f"{n_params / 1e6:.1f}M",
        "quantization_level": facts.type if facts else "",
    }


class ShowBody(msgspec.Struct):
    """A request for a model's description."""

    model: str | None = None


def describe_model(batch: Batch) -> dict[str, Any]:
    """A model's template, sampling, metadata and capabilities."""
    speech, sources = Speech.of(batch.target), ChatTemplate.of(batch.target).sources
    template = sources.get("default") or next(iter(sources.values()), "")
    can = ["completion"]
    can += ["tools"] if "tools" in template else []
    can += ["thinking"] if speech.notation.reasoning or speech.notation.channels else []
    metadata = batch.target.metadata
    known = {
        key: _number(value)
        for key, value in metadata.items()
        if not key.startswith("tokenizer.chat")
    }
    sampling = batch.settings.sampling
    return {
        "modelfile": "",
        "parameters": f"temperature {sampling.temperature:g}\ntop_k {sampling.top_k}\ntop_p {sampling.top_p:g}",
        "template": template,
        "details": _details(batch),
        "model_info": {**known, "general.parameter_count": batch.facts["n_params"]},
        "capabilities": can,
    }


def _number(text: str) -> int | float | str:
    """A value of the metadata, which llama.cpp returns as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text[:1000]
