"""Unsupported fields of requests that are refused, since ignoring them would change the answer, and bodies that are no JSON.

A body's `refused` names those that it checks. Its `harmless` names fields of the APIs that may be ignored;
`.docs/pages/fields.md` gives a reason for each of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.errors import InputError, ThreadUnsupported
from pyspec.requests.records import RequestFields


@dataclass(frozen=True)
class Undone:
    """A refused field. why, hint: the error's sentences. asks: whether a value has an effect; others are accepted.

    kind: the error to raise.
    """

    why: str = "is not supported"
    hint: str = "leave it out"
    asks: Callable[[Any], bool] = bool
    kind: type[InputError] = InputError


def _unless(*values: Any) -> Callable[[Any], bool]:
    """Whether a value is none of these; true is no 1."""
    return lambda value: (
        not any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
        )
    )


def _positive(value: Any) -> bool:
    return type(value) not in (int, float) or value > 0


_BUDGET = Undone(hint="use reasoning_budget", asks=_unless(-1))
_STORED = Undone(
    "needs stored responses, and none are stored", "send the whole conversation as input"
)
_ANYWHERE = {
    # OpenAI's
    "moderation": Undone("is not done here"),
    "prompt_cache_options": Undone(
        "asks for no answer (prewarm)", "send max_tokens 0", lambda v: not isinstance(v, dict) or bool(v.get("prewarm"))
    ),
    "suffix": Undone(),
    # llama-server's and vLLM's
    "n_predict": Undone(hint="use max_tokens", asks=_unless(-1)),
    "typ_p": Undone(asks=_unless(1)),
    "top_n_sigma": Undone(asks=_positive),
    "adaptive_target": Undone(asks=_positive),
    "chat_format": Undone("comes with the model"),
    "grammar_lazy": Undone(hint="send tools, whose calls are held to their form"),
    "grammar_triggers": Undone(hint="send tools, whose calls are held to their form"),
    "lora": Undone(hint="merge the adapter into the model's file"),
    "min_keep": Undone(asks=_positive),
    "n_cmpl": Undone(hint="use n", asks=_unless(1)),
    "n_indent": Undone(asks=_positive),
    "parse_tool_calls": Undone("is always done", "leave tools out", _unless(True)),
    "preserved_tokens": Undone(),
    "reasoning_budget_message": Undone(),
    "reasoning_budget_tokens": _BUDGET,
    "reasoning_format": Undone("cannot be chosen", asks=_unless("auto", "deepseek")),
    "repeat_last_n": Undone("is always 64", asks=_unless(64)),
    "response_fields": Undone("cannot be chosen"),
    "return_progress": Undone(),
    "t_max_predict_ms": Undone(hint="use max_tokens, or close the connection", asks=_positive),
    "thinking_forced_open": Undone(hint="use chat_template_kwargs"),
    "guided_whitespace_pattern": Undone(),
    "include_reasoning": Undone("is always done", "ask for none by enable_thinking", _unless(True)),
    "include_stop_str_in_output": Undone(),
    "kv_transfer_params": Undone(),
    "logits_processors": Undone(hint="use logit_bias"),
    "mm_processor_kwargs": Undone(),
    "return_token_ids": Undone(hint="send the content to /tokenize"),
    "return_tokens_as_token_ids": Undone(),
    "skip_special_tokens": Undone("is always done", asks=_unless(True)),
    "thinking_token_budget": _BUDGET,
    "truncate_prompt_tokens": Undone(hint="shorten the prompt"),
    "vllm_xargs": Undone(),
    "mirostat": Undone(),
    "min_tokens": Undone(),
    "ignore_eos": Undone(),
    "stop_token_ids": Undone(hint="use stop"),
    "bad_words": Undone(hint="use logit_bias"),
    "allowed_token_ids": Undone(hint="use logit_bias"),
    "use_beam_search": Undone(),
    "chat_template": Undone("comes with the model", "use chat_template_kwargs, or set another when the server starts"),
    "documents": Undone(hint="write them into a message"),
    "samplers": Undone("cannot be put into another order"),
    "prompt_logprobs": Undone(hint="use echo and logprobs of /v1/completions", asks=lambda v: v is not False),
    # ollama's
    "num_ctx": Undone("is no matter of a request", "set the context when the server starts (-c)"),
}  # fmt: skip
UNDONE = _ANYWHERE | {
    # of some kinds alone: vLLM's, and ollama's
    "add_special_tokens": Undone("is always done", "send token ids", _unless(True)),
    "echo": Undone(hint="use /v1/completions"),
    "logprobs": Undone(hint="use /v1/chat/completions"),
    "top_logprobs": Undone(hint="use /v1/chat/completions"),
    # OpenAI's
    "audio": Undone(hint="answers are text alone"),
    "modalities": Undone("has more than text", "answers are text alone", lambda v: set(v) != {"text"} and bool(v)),
    "web_search_options": Undone("asks for a search, and none is made here", asks=lambda _: True),
    "background": _STORED,
    "conversation": _STORED,
    "previous_response_id": _STORED,
    "prompt": _STORED,
    "personality": Undone(hint="describe it in instructions"),
    "truncation": Undone("auto is not supported", "leave it out, and shorten the input", _unless("disabled")),
    # Anthropic's
    "compaction": Undone(hint="ask for a summary in a message"),
    "container": Undone("is none of this server's"),
    "mcp_servers": Undone("are not asked from here", "send their tools, and call them yourself"),
    "thread": Undone(
        "needs stored messages, and none are stored", "send the whole conversation", kind=ThreadUnsupported
    ),
    # llama-server's
    "n_probs": Undone(hint="use logprobs of /v1/completions"),
    "return_tokens": Undone(hint="send the content to /tokenize"),
    # ollama's
    "template": Undone(hint="leave it out, or set another when the server starts (--chat-template)"),
    "context": Undone(hint="send the conversation to /api/chat"),
}  # fmt: skip
"""Every refused field of any kind of request."""

HARMLESS = (
    "backend_sampling", "cache_prompt", "id_slot", "n_cache_reuse", "n_keep", "post_sampling_probs",
    "speculative.n_max", "speculative.n_min", "speculative.p_min", "sse_ping_interval", "t_max_prompt_ms",
    "timings_per_token",
    "cache_salt", "guided_decoding_backend", "length_penalty", "priority", "request_id",
    "spaces_between_special_tokens",
)  # fmt: skip
"""llama-server's and vLLM's fields that may be ignored."""

REFUSED = tuple(sorted(_ANYWHERE))
"""Names of the fields that are read of all kinds of request, to refuse them."""

if TYPE_CHECKING:
    UndoneFields = RequestFields
else:
    UndoneFields = msgspec.defstruct(
        "UndoneFields",
        [(name, Any, None) for name in REFUSED],
        bases=(RequestFields,),
        kw_only=True,
    )


def refuse_undone(body: Any) -> None:
    """Raise InputError where a body uses an unsupported field."""
    for name in body.refused:
        value, undone = getattr(body, name), UNDONE[name]
        if value is not None and undone.asks(value):
            raise undone.kind(f"{name} {undone.why}", undone.hint)


_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which is no character."""

_NAMES = re.compile(rb'"([\w$.-]{1,40})"\s*:')
"""Names of members; within a text, quotes have a backslash before them."""

_MOST = 1 << 20
# bytes of a body to read a second time: other requests wait meanwhile

_BYTE = re.compile(r"\(byte (\d+)\)")


def unreadable(data: bytes, found: str) -> InputError:
    """The error for a body that msgspec cannot read. found: msgspec's words."""
    if len(data) > _MOST:
        return InputError("the body is no JSON in UTF-8, or not all of it", "send all of it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return InputError(
            f"{_field(data[: error.start])} has bytes that are not UTF-8", "send UTF-8"
        )
    halves: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            texts = [key, *value] if isinstance(value, list) else [key, value]
            halves.extend(key for each in texts if isinstance(each, str) and _HALF.search(each))

    try:
        json.loads(text, object_pairs_hook=look)
    except RecursionError:
        return InputError("the body is nested too deep")
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string") or not text[error.pos :].strip():
            return InputError(f"the body ends within {_field(data)}", "send all of it")
        return InputError(f"the body is no JSON at {_field(text[: error.pos].encode())}")
    byte, hint = _BYTE.search(found), ""
    message = f"the body is no JSON at {_field(data[: int(byte[1])] if byte else b'')}"
    if halves:
        name = halves[0].encode(errors="replace").decode()[:40]
        message, hint = f"{name} has half a character (a lone surrogate)", "send whole ones"
    return InputError(message, hint)


def _field(before: bytes) -> str:
    """The last name of a member in a part of a body."""
    names = _NAMES.findall(before)
    return names[-1].decode() if names else "the body"
