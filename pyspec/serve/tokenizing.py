"""A model's tokens, in the formats of llama-server and vLLM."""

from __future__ import annotations

from typing import Any

import msgspec

from pyspec.batch.run import Batch
from pyspec.errors import InputError
from pyspec.requests.bodies import ChatBody, decoded, records_of
from pyspec.text.template import ChatTemplate


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
        return list(batch.jobs.job(0, record).tokens)
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
