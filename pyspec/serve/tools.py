"""Tools of OpenAI's Responses that clients run, as functions of a chat, and calls of these as the items that clients read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspec.errors import InputError

KINDS = ("function", "custom", "namespace")
"""Types of tools that clients run; a namespace holds some of the others."""

_TEXT_ALONE = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "All of it."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of the function that stands for a tool which takes a text."""


@dataclass(frozen=True)
class ClientTool:
    """A tool that the client runs. given: as the request has it; namespace: the name of the one that holds it."""

    given: Mapping[str, Any]
    namespace: str | None = None

    @property
    def is_custom(self) -> bool:
        """Whether it takes a text, and no JSON."""
        return self.given.get("type") == "custom"

    @property
    def name(self) -> str:
        """What the model knows it by."""
        return flat_name(self.given.get("name"), self.namespace)

    def function(self) -> dict[str, Any]:
        """It as a chat's function."""
        if not self.is_custom:
            told = {key: value for key, value in self.given.items() if key != "type"}
            return {**told, "name": self.name}
        form = self.given.get("format") or {}
        texts = [self.given.get("description")]
        if "definition" in form:
            texts.append(f"The input's form, in {form.get('syntax')}:\n{form['definition']}")
        description = "\n\n".join(filter(None, texts))
        return {"name": self.name, "description": description, "parameters": _TEXT_ALONE}

    def item(self, call: str, text: str) -> dict[str, Any]:
        """A call of it as an item. call: its id; text: its arguments, a part of them while they come."""
        where = {} if self.namespace is None else {"namespace": self.namespace}
        told = {"call_id": call, "name": self.given.get("name"), **where}
        if self.is_custom:
            return {"type": "custom_tool_call", **told, "input": _input(text)}
        return {"type": "function_call", **told, "arguments": text}


def flat_name(name: Any, namespace: Any = None) -> str:
    """The name of a tool behind that of its namespace, as names of MCP's tools are written."""
    if not isinstance(name, str):
        raise InputError("a tool has no name")
    return f"{str(namespace).removesuffix('__')}__{name}" if namespace else name


def client_tools(tools: Iterable[dict[str, Any]]) -> Iterator[ClientTool]:
    """Those that the client runs. Raises InputError."""
    for tool in tools:
        if tool.get("type") == "namespace":
            name = flat_name(tool.get("name"))
            yield from (ClientTool(each, name) for each in tool["tools"])
        elif tool.get("type") in KINDS:
            yield ClientTool(tool)


def flat_choice(choice: Any, tools: Iterable[ClientTool]) -> Any:
    """A `tool_choice` that names tools as the model knows them."""
    names = {tool.given.get("name"): tool.name for tool in tools}

    def flat(named: Any) -> Any:
        known = isinstance(named, dict) and named.get("name") in names
        return {"type": "function", "name": names[named["name"]]} if known else named

    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {**choice, "tools": [flat(each) for each in choice.get("tools") or ()]}
    return flat(choice)


def call_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """The call of a chat that an item is."""
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": item["input"]}, ensure_ascii=False)
    else:
        arguments = item["arguments"]
    function = {"name": flat_name(item["name"], item.get("namespace")), "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _input(text: str) -> str:
    """The text that arguments bring; these as they are where they were cut."""
    try:
        return str(json.loads(text)["input"]) if text else ""
    except (ValueError, LookupError, TypeError, RecursionError):
        return text
