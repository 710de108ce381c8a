"""Anthropic's Messages: turns of content blocks in, content blocks out."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from pyspec.batch.run import Batch
from pyspec.errors import InputError, ThreadUnsupported
from pyspec.requests.bodies import Body, records_of
from pyspec.requests.records import Record
from pyspec.serve.interface import PING, AnswerBlock, AnswerBlocks, Interface, PendingRequest, event
from pyspec.text.messages import content_text, without_pictures
from pyspec.text.parts import Result, object_of

_REASONS = {
    "stop": "end_turn", "tool_calls": "tool_use", "context": "model_context_window_exceeded",
}  # fmt: skip
_ERRORS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip

_SESSION = re.compile(r"_session_[0-9a-fA-F-]{36}\Z")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# types of tools that clients run and whose schemas only Anthropic's models know
_CLIENTS_OWN = re.compile(r"(bash|text_editor|memory|computer|browser)_")

NOTE = "x-anthropic-billing-header:"
"""Prefix of an agent's note to Anthropic. It changes with each request, so that no text after it could be a cached prefix."""

_DOCUMENTS = {"text": "data", "content": "content"}  # sources that are text: type and member


class MessagesBody(Body):
    """A request's body. Tools that Anthropic's server would run are left out. output_format: as betas named output_config's."""

    most_answers = 1

    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.stop_sequences is not None:
            self.stop = list(self.stop_sequences)

    @property
    def owner(self) -> str:
        """The user whose remembered texts may draft for this request; the same in the user's next session."""
        user = (self.metadata or {}).get("user_id")
        return _without_session(str(user)) if user else super().owner

    def records(self) -> list[Record]:
        record = self._record()
        if (record.messages or [{}])[-1].get("role") == "assistant" and not record.goes_on:
            what = "the last message is the model's own, and no text that it could go on with"
            hint = "end with one of the user's, or leave tool_choice and a format out"
            raise InputError(what, hint)
        return [record]

    def _record(self) -> Record:
        choice = self.tool_choice or {}
        disabled = (self.thinking or {}).get("type") == "disabled"
        return self._chat(
            list(self._turns()),
            tools=[chat_tool(tool) for tool in self._offered()],
            choice=chat_choice(choice),
            parallel=not choice.get("disable_parallel_tool_use"),
            effort="none" if disabled else (self.output_config or {}).get("effort"),
        )

    def _forms(self) -> Iterator[dict[str, Any] | None]:
        yield (self.output_config or {}).get("format") or self.output_format
        yield from super()._forms()

    def _offered(self) -> list[dict[str, Any]]:
        """Tools that the model may call now. Where the client searches for tools, a deferred one counts once it is found."""
        tools = [tool for tool in self.tools or () if is_function(tool)]
        if any(str(tool.get("type")).startswith("tool_search_tool") for tool in self.tools or ()):
            return tools
        found = {name for message in self.messages for name in _found(message.get("content"))}
        return [t for t in tools if not t.get("defer_loading") or t.get("name") in found]

    def _turns(self) -> Iterator[dict[str, Any]]:
        system = self.system or ""
        parts = [system] if isinstance(system, str) else [_text(block) for block in system]
        parts = [part for part in parts if not part.startswith(NOTE)]
        if text := "\n".join(parts):
            yield {"role": "system", "content": text}
        for message in self.messages:
            role, content = message.get("role"), message.get("content")
            if role not in ("user", "assistant", "system"):
                hint = "use user or assistant"
                raise InputError(f"a message has the role {str(role)[:40]!r}", hint)
            if isinstance(content, str):
                yield {"role": role, "content": content}
            elif not isinstance(content, list):
                raise InputError("a message has content that is neither text nor a list of blocks")
            else:
                yield from _own(content) if role == "assistant" else _users(str(role), content)


class CountBody(MessagesBody):
    """A request to count tokens: it may end with any message, and formats of the answer are ignored."""

    def records(self) -> list[Record]:
        self.grammar = None
        return [self._record()]

    def _language(self) -> None:
        return None


def count_tokens(batch: Batch, body: CountBody) -> dict[str, int]:
    """The tokens of a request's prompt. Raises InputError."""
    return {"input_tokens": sum(map(batch.maker.count, records_of(body)))}


def _without_session(user: str) -> str:
    """A user's name without the session that agents add to it, as a suffix or as a member of an object."""
    try:
        named = json.loads(user)
    except (ValueError, RecursionError):
        named = None
    if isinstance(named, dict):
        lasting = {key: each for key, each in named.items() if "session" not in key}
        return json.dumps(lasting, sort_keys=True) if lasting else user
    return _SESSION.sub("", user) or user


# -- blocks in ---------------------------------------------------------------------------------------------------------


def _users(role: str, blocks: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A user's turn as messages: one for each result of a call, and one for each text between them."""
    for is_result, group in groupby(blocks, lambda block: block.get("type") == "tool_result"):
        if is_result:
            yield from map(_result, group)
        else:
            yield {"role": role, "content": "\n".join(map(_text, group))}


def _result(block: dict[str, Any]) -> dict[str, Any]:
    result = block.get("content") or ""
    if isinstance(result, str):
        parts = [result]
    else:
        whole = result if isinstance(result, list) else [result]
        parts = [_text(part) for part in without_pictures(whole)]
    if block.get("is_error"):
        parts = ["The call failed:", *parts]
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": "\n".join(parts)}


def _found(content: Any) -> Iterator[str]:
    """Names of the tools that a turn's results refer to."""
    for block in content if isinstance(content, list) else ():
        if block.get("type") == "tool_result":
            yield from _found(block.get("content"))
        elif block.get("type") == "tool_reference":
            yield block["tool_name"]


def _text(block: dict[str, Any]) -> str:
    """The text of a block: a text, a text document or a reference to a tool. Raises InputError."""
    kind, source = block.get("type"), block.get("source")
    if kind == "tool_reference":
        return f"{block['tool_name']} can be called now."
    if kind == "document" and isinstance(source, dict) and source.get("type") in _DOCUMENTS:
        content = source[_DOCUMENTS[source["type"]]]
        parts = (block.get("title"), block.get("context"), content_text(content))
        return "\n".join(filter(None, parts))
    return content_text([block]) or ""


_SERVERS_OWN = re.compile(r"redacted_thinking|(server|mcp)_tool_use|[a-z_]+_tool_result")
# types of blocks that are skipped: encrypted ones, and tools that Anthropic's server ran, whose results are in the model's text


def _own(blocks: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The model's turn as a message: reasoning, text and calls."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            function = {"name": block["name"], "arguments": json.dumps(block["input"])}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif kind == "thinking":
            thoughts.append(block["thinking"])
        elif not _SERVERS_OWN.fullmatch(str(kind)):
            texts.append(_text(block))
    made: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) or None}
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    yield made if calls or texts else {**made, "content": ""}


# -- blocks out --------------------------------------------------------------------------------------------------------


def _block(block: AnswerBlock) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if block.kind == "content":
        return {"type": "text", "text": block.text}
    arguments = object_of(block.text or "{}")
    return {"type": "tool_use", "id": block.call, "name": block.name, "input": arguments}


def _message(pending: PendingRequest, prompt_tokens: int) -> dict[str, Any]:
    return {
        "id": pending.name,
        "type": "message",
        "role": "assistant",
        "model": pending.serving.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
    }


def _ended(pending: PendingRequest, result: Result) -> dict[str, Any]:
    if result.finish_reason == "stop" and result.stop_string in (pending.body.stop_sequences or ()):
        return {"stop_reason": "stop_sequence", "stop_sequence": result.stop_string}
    reason = _REASONS.get(result.finish_reason or "", "max_tokens")
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(result: Result) -> dict[str, int]:
    kept = result.speculation.get("prompt_kept", 0)
    return {
        "input_tokens": result.usage.prompt_tokens - kept,
        "cache_read_input_tokens": kept,
        "cache_creation_input_tokens": 0,
        "output_tokens": result.usage.completion_tokens,
    }


def whole(pending: PendingRequest) -> dict[str, Any]:
    """The body of a response that is not streamed.

    A truncated call becomes text, since clients would run it. It is left out where the request demands a call.
    """
    (choice,), blocks = pending.choices, AnswerBlocks()
    for _ in blocks.take(choice.taken()[0]):
        pass
    demanded = (pending.body.tool_choice or {}).get("type") in ("any", "tool")
    shown = [block for block in blocks.all if block.whole or not demanded]
    content = [_block(b) if b.whole else {"type": "text", "text": b.text} for b in shown]
    made = {**_message(pending, 0), "content": content, **_ended(pending, choice.result)}
    return {**made, "usage": _usage(choice.result), "speculation": choice.block}


async def events(pending: PendingRequest) -> AsyncIterator[bytes]:
    """A message's events, from `message_start` to `message_stop`.

    Only comments are sent before the first text: until then another replica could still answer. A truncated call has begun by
    then, as in Anthropic's own streams: clients know by `max_tokens` that its input is incomplete.
    """
    blocks, message = AnswerBlocks(), _message(pending, pending.prompt_tokens)
    begun = False
    async for choice in pending.updates():
        if choice is None:
            yield event({"type": "ping"}) if begun else PING
            continue
        if not begun:
            begun = True
            yield event({"type": "message_start", "message": message})
            yield event({"type": "ping"})
        for step, block, text in blocks.take(choice.taken()[0]):
            yield _step(step, block, text)
    for step, block, text in blocks.end():
        yield _step(step, block, text)
    (choice,) = pending.choices
    ended = {"delta": _ended(pending, choice.result), "usage": _usage(choice.result)}
    yield event({"type": "message_delta", **ended, "speculation": choice.block})
    yield event({"type": "message_stop"})


def _step(step: str, block: AnswerBlock, text: str) -> bytes:
    place = {"index": block.index}
    if step == "begin":
        return event({"type": "content_block_start", **place, "content_block": _block(block)})
    if step == "end":
        return event({"type": "content_block_stop", **place})
    kind, field = {
        "reasoning": ("thinking_delta", "thinking"),
        "content": ("text_delta", "text"),
        "call": ("input_json_delta", "partial_json"),
    }[block.kind]
    return event({"type": "content_block_delta", **place, "delta": {"type": kind, field: text}})


def refusal(status: int, code: str | None, message: str) -> dict[str, Any]:
    """An error in Anthropic's format. Clients find the code of ThreadUnsupported in its details."""
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    error: dict[str, Any] = {"type": kind, "message": message}
    if (status, code) == ThreadUnsupported.http:
        error["details"] = {"error_code": code, "unsupported": []}
    return {"type": "error", "error": error}


MESSAGES = Interface(
    "message", "msg_", MessagesBody, whole, events, refusal, event,
    too_long="prompt is too long: {need} tokens > {have} maximum",
)  # fmt: skip


def is_function(tool: Mapping[str, Any]) -> bool:
    """Whether the client runs a tool, rather than Anthropic's server. Raises InputError for a tool without a known schema."""
    if "input_schema" in tool:
        return True
    kind = tool.get("type")
    if kind and not _CLIENTS_OWN.match(kind):
        return False
    raise InputError(f"the tool {str(tool.get('name'))[:40]!r} has no input_schema", "send one")


def chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as a chat's function."""
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema", {})}
    if text := tool.get("description"):
        function["description"] = text
    return {"type": "function", "function": function}


def chat_choice(choice: Mapping[str, Any]) -> str | dict[str, Any] | None:
    """A chat's `tool_choice` for Anthropic's. Raises InputError."""
    kind = choice.get("type", "auto")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in _CHOICES:
        raise InputError(f"tool_choice is {str(kind)[:40]!r}", "use auto, any, tool or none")
    return _CHOICES[kind]
