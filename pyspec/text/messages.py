"""The messages of a conversation: as clients send them, and in the standard form that `transformers` documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pyspec.errors import InputError
from pyspec.text.parts import object_of


class Message(TypedDict, total=False):
    """One turn of a conversation, in OpenAI's form.

    Attributes:
        role: "system", "user", "assistant" or "tool".
        content: The text of the turn, or its parts.
        reasoning_content: The model's reasoning before the content.
        tokens: Ids of an answer as it was generated, in place of its content. Never pass ids from an untrusted source.
    """

    role: str
    content: str | list[dict[str, Any]]
    reasoning_content: str
    tokens: Sequence[int]


_REASONING = ("reasoning_content", "thinking", "reasoning")


def standard(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with text content, call arguments as objects, and reasoning under the names that templates read.

    Arguments cut off by an answer's token limit stay text. Raises InputError for a message without a role, content that is
    not text, or a call without a function.
    """
    return [_standard(message) for message in messages]


def _standard(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError("a message has no role")
    made = {key: value for key, value in message.items() if key != "tokens"}
    made["content"] = content_text(message.get("content"), result=message["role"] in RESULTS)
    if made["content"] is None and message["role"] != "assistant":
        raise InputError(f"a message of the role {message['role'][:40]} has no content")
    reasoning = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if reasoning is not None:
        made = {"thinking": reasoning, **made, "reasoning_content": reasoning}
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise InputError("the tool calls of a message are not a list")
    if calls:
        made["tool_calls"] = [_call(call) for call in calls]
    elif "tool_calls" in made:
        del made["tool_calls"]  # templates test whether the key exists
    return made


NO_PICTURE = "(a picture, which this model cannot see)"
"""Stands for one in a call's result: the conversation goes on when it is sent again."""

RESULTS = ("tool", "function")


def content_text(content: Any, *, result: bool = False) -> str | None:
    """Return the text of a message's content: one string, or parts of text. Raises InputError for other kinds.

    result: whether it is a call's result, of which a line says that there was a picture.
    """
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    parts = without_pictures(parts) if result else parts
    if any(map(is_picture, parts)):
        raise picture_refused()
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise InputError("a message has content that is not text", "files and audio are not read")
    return "".join(part["text"] for part in parts)


def picture_refused() -> InputError:
    """Return the error for a picture that somebody is to see."""
    return InputError(
        "a message has a picture, and only pyspec.SpeculativeLlama sees pictures, by a chat_handler of llama-cpp-python's"
    )


def without_pictures(content: Any) -> Any:
    """Return a call's result with a line of text in place of each picture."""
    if not isinstance(content, list):
        return content
    return [{"type": "text", "text": NO_PICTURE} if is_picture(part) else part for part in content]


def is_picture(part: Any) -> bool:
    """Whether a part of a content is a picture, in any API's form."""
    return isinstance(part, dict) and part.get("type") in ("image", "image_url", "input_image")


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputError("a tool call in the messages has no function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        read = object_of(arguments or "{}")
        arguments = arguments if read is None else read
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def from_outside(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return untrusted messages without their `tokens`, which could include any control token."""
    return [
        {key: value for key, value in message.items() if key != "tokens"} for message in messages
    ]
