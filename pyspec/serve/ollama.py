"""Ollama's API: chats and texts in, lines of JSON out. Streaming is its default.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from time import time
from typing import Any, ClassVar, Literal

import msgspec
from msgspec.structs import asdict

from pyspec._version import __version__
from pyspec.batch.run import Batch
from pyspec.gguf.header import facts_of
from pyspec.requests.bodies import Body
from pyspec.requests.records import COMPLETION, Record, RequestFields, openai_reason
from pyspec.serve.interface import Choice, Interface, PendingRequest
from pyspec.text.answer import Speech
from pyspec.text.messages import picture_refused
from pyspec.text.parts import object_of
from pyspec.text.template import ChatTemplate

LINES = "application/x-ndjson"
_AS_MUCH_AS_FITS = -2


class OllamaOptions(RequestFields, kw_only=True):
    """A request's `options`. Those that concern loading the model are ignored: the server's operator has decided."""

    stop: str | list[str] | None = None
    num_predict: int | None = None


class OllamaBody(Body):
    """Fields of both kinds of request. format: "json" or a schema. think: whether, or how hard."""

    most_answers = 1
    asks: ClassVar[str]  # the field without which a request only loads the model

    options: OllamaOptions | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high"] | None = None  # type: ignore[assignment]
    tools: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        for key, value in asdict(self.options).items() if self.options else ():
            if value is not None:
                setattr(self, "max_tokens" if key == "num_predict" else key, value)
        if self.max_tokens == _AS_MUCH_AS_FITS:
            self.max_tokens = -1
        self.stream = self.stream is not False  # the default is to stream

    @classmethod
    def refuse(cls, given: Mapping[str, Any]) -> None:
        super().refuse({**(given.get("options") or {}), "num_ctx": None, **given})

    @property
    def unasked(self) -> dict[str, Any] | None:
        """The response to a request that only loads the model, else None."""
        if getattr(self, self.asks):
            return None
        return {**_frame(self.model, time(), done=True), **_said(self), "done_reason": "load"}

    @property
    def _effort(self) -> str | None:
        """How hard to think."""
        return self.think if isinstance(self.think, str) else None

    def _forms(self) -> Iterator[dict[str, Any] | None]:
        if self.format == "json":
            yield {"type": "json_object"}
        elif self.format:
            yield {"type": "json_schema", "schema": self.format}
        yield from super()._forms()


class OllamaChat(OllamaBody):
    """A chat. Without messages it only loads the model."""

    asks = "messages"

    messages: list[dict[str, Any]] | None = None

    def records(self) -> list[Record]:
        messages = [_turn(message) for message in self.messages or ()]
        return [self._chat(messages, tools=self.tools, effort=self._effort)]


class OllamaText(OllamaBody):
    """A prompt. raw: without the template. suffix: the text after the answer. Without a prompt it only loads the model."""

    asks = "prompt"

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    images: list[str] | None = None

    def records(self) -> list[Record]:
        text, suffix = self.prompt or "", self.suffix or None
        turns = [{"role": "system", "content": self.system}] if self.system else []
        turns.append(_turn({"role": "user", "content": text, "images": self.images}))
        if self.raw or suffix:
            return [Record(prompt=text, suffix=suffix, form=COMPLETION, **self._shared())]
        return [self._chat(turns, effort=self._effort)]


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


def _said(
    body: Body, text: str = "", thinking: str = "", calls: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """What an answer says: a chat's is a message."""
    made: dict[str, Any] = {"thinking": thinking} if thinking else {}
    if not isinstance(body, OllamaChat):
        return {"response": text, **made}
    if calls:
        functions = (call["function"] for call in calls)
        made["tool_calls"] = [
            {"function": {"name": each["name"], "arguments": object_of(each["arguments"])}}
            for each in functions
        ]
    return {"message": {"role": "assistant", "content": text, **made}}


def _frame(model: str | None, created: float, *, done: bool) -> dict[str, Any]:
    return {"model": model, "created_at": _moment(created), "done": done}


def _moment(seconds: float) -> str:
    """A time, seconds since 1970, as text."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def _answer(pending: PendingRequest, *, done: bool) -> dict[str, Any]:
    return _frame(pending.body.model or pending.serving.model, pending.created, done=done)


def _end(choice: Choice) -> dict[str, Any]:
    """An answer's finish reason, counts and durations in nanoseconds."""
    result, times = choice.result, choice.times
    total, first = (int(1e6 * times[name]) for name in ("total_ms", "first_token_ms"))
    reason = "length" if openai_reason(result.finish_reason) == "length" else "stop"
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


def whole(pending: PendingRequest) -> dict[str, Any]:
    (choice,) = pending.choices
    result = choice.result
    said = _said(pending.body, result.text, result.reasoning, result.calls)
    return {**_answer(pending, done=True), **said, **_end(choice)}


async def events(pending: PendingRequest) -> AsyncIterator[bytes]:
    """Lines as the answer grows. Calls are sent whole, before the last line."""
    async for choice in pending.updates():
        for said in _lines(pending.body, choice) if choice is not None else ():
            yield _line({**_answer(pending, done=False), **said})
    yield _line({**_answer(pending, done=True), **_said(pending.body), **_end(pending.choices[0])})


def _lines(body: Body, choice: Choice) -> Iterator[dict[str, Any]]:
    parts, ended = choice.taken()
    for part in parts:
        if part.kind == "reasoning":
            yield _said(body, thinking=part.text)
        elif part.kind in ("content", "broken") and part.text:
            yield _said(body, part.text)
    if ended and choice.result.calls:
        yield _said(body, calls=choice.result.calls)


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def refusal(_status: int, _code: str | None, message: str) -> dict[str, Any]:
    return {"error": message}


OLLAMA_CHATS = Interface(
    "ollama chat", "chat-", OllamaChat, whole, events, refusal, _line, media_type=LINES, ping=b""
)
OLLAMA_TEXTS = Interface(
    "ollama text", "text-", OllamaText, whole, events, refusal, _line, media_type=LINES, ping=b""
)

# -- models ------------------------------------------------------------------------------------------------------------

_FOREVER = "2318-01-01T00:00:00Z"
_DIGEST = "0" * 64  # files are not hashed here, and ollama's own client shows the first digits

# what clients check before they use newer features: the version of ollama whose API is served, beside our own
VERSION = {"version": "0.12.6", "pyspec": __version__}


def entry(name: str, batch: Batch | None) -> dict[str, Any]:
    """A model that requests may name. Of one that is not loaded (None), only the name is known."""
    known: dict[str, Any] = {"name": name, "model": name, "size": 0, "digest": _DIGEST}
    known |= {"modified_at": _moment(0), "details": _details(batch)}
    if batch is None:
        return known
    path = Path(batch.target.model_path)
    return {
        **known,
        "modified_at": _moment(path.stat().st_mtime),
        "size": batch.facts["size"],
        "expires_at": _FOREVER,
        "size_vram": 0,
        "context_length": batch.facts["n_ctx"],
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


def describe_model(batch: Batch, _body: ShowBody) -> dict[str, Any]:
    speech, sources = Speech.of(batch.target), ChatTemplate.of(batch.target).sources
    template = sources.get("default") or next(iter(sources.values()), "")
    can = ["completion"]
    can += ["tools"] if "tools" in template else []
    can += ["thinking"] if speech.notation.reasoning or speech.notation.channels else []
    metadata = batch.target.metadata.items()
    known = {key: _number(v) for key, v in metadata if not key.startswith("tokenizer.chat")}
    sampling = batch.settings.sampling
    return {
        "modelfile": "",
        "template": template,
        "details": _details(batch),
        "capabilities": can,
        "parameters": f"temperature {sampling.temperature:g}\ntop_k {sampling.top_k}\ntop_p {sampling.top_p:g}",
        "model_info": {**known, "general.parameter_count": batch.facts["n_params"]},
    }


def _number(text: str) -> int | float | str:
    """A value of the metadata, which llama.cpp returns as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text[:1000]
