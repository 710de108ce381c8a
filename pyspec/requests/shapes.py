"""Types of what is inside a request's objects and lists.

Templates get messages, tools and the like as they came, so bodies hold them as plain values. They are converted to these types
once, for the check alone. Members that no type names are not read, or are checked where they are read.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pyspec.errors import InputError

Schema = dict[str, Any] | bool


class _Shape(msgspec.Struct, kw_only=True):
    """An object whose members may all be missing."""


class Part(_Shape):
    """A part of a content or of an output, or a block of Anthropic's."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    id: str | None = None
    name: str | None = None
    thinking: str | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: str | list[Part] | None = None
    is_error: bool | None = None
    source: str | Source | None = None
    title: str | None = None
    context: str | None = None


class Source(_Shape):
    """Where a picture's or a document's data are."""

    type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | list[Part] | None = None


class Function(_Shape):
    """A function or a custom tool that is called."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None


class Call(_Shape):
    """A call in a message of the model's."""

    id: str | None = None
    type: str | None = None
    function: Function | None = None
    custom: Function | None = None


class Message(_Shape):
    """A message of a chat, in any API."""

    role: str | None = None
    content: str | Part | list[Part] | None = None
    name: str | None = None
    tool_name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    function_call: Function | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    images: list[str] | None = None


class Item(_Shape):
    """An item of Responses."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    summary: list[Part] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | list[Part] | None = None
    tools: list[Tool] | None = None


class Form(_Shape):
    """The form of an answer, by any of its names."""

    type: str | None = None
    schema: Schema | None = None
    json_schema: Form | None = None
    name: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | dict[str, Any] | None = None
    definition: str | None = None
    syntax: str | None = None


class Tool(_Shape):
    """A tool, or its function."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    input_schema: dict[str, Any] | None = None
    function: Tool | None = None
    custom: Tool | None = None
    format: Form | None = None
    tools: list[Tool] | None = None
    environment: dict[str, Any] | None = None
    execution: str | None = None
    defer_loading: bool | None = None


class ToolChoice(_Shape):
    """The tool that has to be called, or those that may be."""

    type: str | None = None
    name: str | None = None
    mode: str | None = None
    function: Function | None = None
    custom: Function | None = None
    allowed_tools: ToolChoice | None = None
    tools: list[ToolChoice] | None = None
    disable_parallel_tool_use: bool | None = None


class Reasoning(_Shape):
    """How much to reason, by several names."""

    type: str | None = None
    budget_tokens: int | None = None
    max_tokens: int | None = None
    effort: str | None = None
    enabled: bool | None = None


class StreamOptions(_Shape):
    """What a stream tells beside its text."""

    include_usage: bool | None = None


class Outputs(_Shape):
    """vLLM's structured_outputs."""

    json: Schema | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class TextConfig(_Shape):
    """The format of a text, and how hard the model tries."""

    format: Form | None = None
    effort: str | None = None


class Metadata(_Shape):
    """Facts about a request. user_id: Anthropic's."""

    user_id: str | None = None


class Inside(_Shape):
    """Fields of all kinds of request that are objects or lists."""

    stream_options: StreamOptions | None = None
    response_format: Form | None = None
    structured_outputs: Outputs | None = None
    thinking: Reasoning | None = None
    reasoning: Reasoning | None = None
    tools: list[Tool] | None = None
    functions: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    function_call: str | Function | None = None
    messages: list[Message] | None = None
    system: str | list[Part] | None = None
    input: str | list[Item | str] | None = None
    prediction: Message | None = None
    text: TextConfig | None = None
    output_config: TextConfig | None = None
    output_format: Form | None = None
    metadata: Metadata | None = None


_KINDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip
_EXPECTED = re.compile(r"Expected `([^`]+)`, got `(\w+)`(?: - at (.+))?")
_LACKS = re.compile(r"Object missing required field `(\w+)`(?: - at (.+))?")


def refusal(error: msgspec.ValidationError) -> InputError:
    """The error in words of our own: which field is what, and what it takes."""
    text = str(error)
    if lacks := _LACKS.fullmatch(text):
        return InputError(f"{_place(lacks[2], lacks[1])} is missing", "send it")
    found = _EXPECTED.fullmatch(text)
    if found is None:
        message, _, place = text.partition(" - at ")
        return InputError(f"{_place(place)}: {message[:1].lower()}{message[1:]}")
    wanted = [_KINDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
    place, got = _place(found[3]), _KINDS.get(found[2], found[2])
    if found[2] == "null":
        return InputError(f"{place} is missing", f"send {' or '.join(wanted)}")
    return InputError(f"{place} is {got}", f"use {', '.join(wanted)}")


def _place(told: str | None, member: str = "") -> str:
    """A path of msgspec's, such as `key` in `$.a[0].b`, as a name."""
    path = (told or "").rpartition("`$")[2].strip("`").removeprefix(".")
    path = ".".join(filter(None, (path, member))) or "the body"
    return f"a key of {path}" if (told or "").startswith("`key`") else path


def check_inside(body: Any) -> None:
    """Raise msgspec.ValidationError where a member of a body's objects and lists has a wrong type."""
    msgspec.convert(body, Inside, from_attributes=True)
