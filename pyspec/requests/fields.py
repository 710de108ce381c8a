"""Unsupported fields of requests that are refused, since ignoring them would change the answer.

A body's `refused` names those that it checks. Its `harmless` names fields of the APIs that may be ignored;
`.docs/pages/server.md` gives a reason for each of these.
"""

from __future__ import annotations

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
    return lambda value: isinstance(value, bool) or value not in values


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
    "top_n_sigma": Undone(asks=lambda v: type(v) not in (int, float) or v > 0),
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
