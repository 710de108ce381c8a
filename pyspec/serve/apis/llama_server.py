"""llama-server's `/infill`: a gap in a text, and llama-server's names for the finish reasons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from pyspec.batch.run import Batch
from pyspec.errors import InputError
from pyspec.requests.bodies import Body, ChatBody, decoded, records_of
from pyspec.requests.fields import HARMLESS, REFUSED
from pyspec.requests.records import COMPLETION, Record
from pyspec.serve.apis.completions import broken
from pyspec.serve.apis.interface import (
    PING,
    PROMPT_TOO_LONG,
    Interface,
    data_event,
    openai_refusal,
)
from pyspec.serve.pending import Choice, PendingRequest
from pyspec.text.template import ChatTemplate


class OtherFileBody(msgspec.Struct):
    """Another file that is open in the editor."""

    text: str
    filename: str | None = None


_HINTS = ("n_indent", "response_fields", "t_max_predict_ms")
# llama.vim sends them by default: how early an answer may end, and what of the reply it reads

_STEPS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "infill",
)
# the order of llama.cpp's samplers; the last one, of editors, only prefers an early end


class InfillBody(Body):
    """A gap to fill between two texts. prompt: the text in it so far. input_extra: other files, the most useful last.

    n_predict: other APIs' max_tokens. logit_bias: pairs, or by token id.
    """

    refused = (
        *(name for name in REFUSED if name not in ("n_predict", "samplers", *_HINTS)), "n_probs", "return_tokens",
    )  # fmt: skip
    harmless = (*HARMLESS, *_HINTS)

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[OtherFileBody] | None = None
    prompt: str | None = None
    n_predict: int | None = None
    n_probs: int | None = None
    return_tokens: bool | None = None
    logit_bias: dict[int, float | bool] | list[tuple[int, float | bool]] | None = None  # type: ignore[assignment]
    functions: Any = None

    form = COMPLETION
    most_answers = 1

    def records(self, name: str) -> list[Record]:
        """The request as one record. Raises InputError."""
        named = getattr(self, "samplers", None) or []
        if not isinstance(named, list) or named != [name for name in _STEPS if name in named]:
            raise InputError("samplers cannot be put into another order", "leave it out")
        if self.n_predict is not None:
            self.max_tokens = self.n_predict
        shared = {**self._shared(name), "logit_bias": _biases(self.logit_bias)}
        others = [(each.filename or "", each.text) for each in self.input_extra or ()]
        suffix = self.input_suffix or ""
        text = self.prompt = (self.input_prefix or "") + (self.prompt or "")
        return [Record(prompt=text, suffix=suffix, others=others, form=COMPLETION, **shared)]


def _biases(value: Any) -> dict[int, float] | None:
    """A `logit_bias` by token id. The value false bans a token."""
    pairs = value.items() if isinstance(value, dict) else value or ()
    if any(bias is True for _, bias in pairs):
        raise InputError("logit_bias has true for a bias", "use a number, or false to ban a token")
    return {token: -1e9 if bias is False else bias for token, bias in pairs} or None


def _whole(_pending: PendingRequest, choices: list[Choice]) -> dict[str, Any]:
    (choice,) = choices
    return {**_end(choice), "content": choice.result.text}


_STOPS = {"length": "limit", "context": "limit", "cancelled": "none"}


def _end(choice: Choice) -> dict[str, Any]:
    """The last event of an answer: finish reason, counts and times."""
    result, pending, times = choice.result, choice.pending, choice.block["timings"]
    kind = "word" if result.stop_string else _STOPS.get(result.finish_reason, "eos")
    n, read = result.usage.completion_tokens, result.usage.prompt_tokens
    rest = times["total_ms"] - times["first_token_ms"]
    return {
        "content": "",
        "tokens": [],
        "index": 0,
        "id_slot": -1,
        "stop": True,
        "model": pending.serving.model,
        "tokens_predicted": n,
        "tokens_evaluated": read,
        "tokens_cached": choice.block.get("prompt_kept", 0),
        "generation_settings": {
            "n_predict": pending.answers[0].max_tokens,
            "stream": pending.body.streams,
        },
        "prompt": pending.body.prompt,
        "has_new_line": "\n" in result.text,
        "truncated": result.finish_reason == "context",
        "stop_type": kind,
        "stopping_word": result.stop_string or "",
        "timings": {
            "prompt_n": read,
            "prompt_ms": times["first_token_ms"],
            "predicted_n": n,
            "predicted_ms": rest,
            "predicted_per_second": times["tokens_per_second"],
            "draft_n": choice.block.get("verified", 0),
            "draft_n_accepted": choice.block.get("accepted", 0),
        },
        "speculation": choice.block,
    }


async def _events(pending: PendingRequest) -> AsyncIterator[bytes]:
    """The answer as it grows, and its end, as server-sent events."""
    choices = pending.choices()
    async for choice in pending.updates(choices):
        if choice is None:
            yield PING
        elif text := "".join(part.text for part in choice.taken()):
            yield data_event(
                {"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": -1}
            )
    yield data_event(_end(choices[0]))


INFILL = Interface(
    "completion", "infill-", InfillBody, _whole, _events, openai_refusal, broken,
    too_long=PROMPT_TOO_LONG,
)  # fmt: skip


class TokenizeBody(msgspec.Struct):
    """A text under llama-server's name (content) or vLLM's (prompt), or a chat's messages.

    add_special: whether to add a beginning-of-text token to content; add_special_tokens: the same for prompt.
    parse_special: whether the names of control tokens in a text become those tokens. with_pieces: whether to return each
    token's text.
    """

    content: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct):
    """A request to turn token ids into text."""

    tokens: list[int]


class _ModelField(msgspec.Struct):
    model: str | None = None


def model_of(data: bytes) -> str | None:
    return decoded(_ModelField, data).model


def tokenize(batch: Batch, data: bytes) -> dict[str, Any]:
    """The tokens of a text or a chat. Raises InputError."""
    body = decoded(TokenizeBody, data)
    tokens = _tokens(batch, body)
    listed: list[Any] = list(tokens)
    if body.with_pieces:
        listed = [{"id": token, "piece": _text(batch, [token])} for token in tokens]
    return {"tokens": listed, "count": len(tokens), "max_model_len": batch.facts["n_ctx"]}


def _tokens(batch: Batch, body: TokenizeBody) -> list[int]:
    if body.messages is not None:
        chat = ChatBody(
            messages=body.messages,
            tools=body.tools,
            chat_template_kwargs=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            max_tokens=0,
        )
        (record,) = records_of(chat, "tokens")
        return list(batch.maker.answer(0, record).tokens)
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise InputError("there is nothing to tokenize", "send content, prompt or messages")
    begins = body.add_special if body.content is not None else body.add_special_tokens is not False
    found = batch.target.tokenizer_.tokenize(
        text.encode("utf-8", "surrogatepass"),
        add_bos=bool(begins),
        special=body.parse_special is not False,
    )
    return list(found)


def detokenize(batch: Batch, data: bytes) -> dict[str, str]:
    """The text of tokens, under llama-server's name and under vLLM's. Raises InputError."""
    text = _text(batch, decoded(DetokenizeBody, data).tokens)
    return {"content": text, "prompt": text}


WORK = {"/tokenize": tokenize, "/detokenize": detokenize}
"""The function of each path."""


def _text(batch: Batch, tokens: list[int]) -> str:
    data: bytes = batch.target.tokenizer_.detokenize(tokens, special=True)
    return data.decode("utf-8", "replace")


def tokenizer_info(batch: Batch) -> dict[str, Any]:
    """A tokenizer's properties in vLLM's format, with which lm-evaluation-harness needs no tokenizer files."""
    target, sources = batch.target, ChatTemplate.of(batch.target).sources
    info: dict[str, Any] = {"tokenizer_class": "pyspec", "model_max_length": batch.facts["n_ctx"]}
    for name in ("bos", "eos"):
        token = getattr(target, f"token_{name}")()
        info[f"{name}_token"] = _text(batch, [token]) if token >= 0 else None
    return {**info, "chat_template": sources.get("default") or next(iter(sources.values()), None)}
