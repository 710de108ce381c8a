"""Conversion of client-run tools of OpenAI's Responses into functions of a chat, and of calls into items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspec.errors import InputError
from pyspec.requests.custom import text_call, text_function, text_of_call
from pyspec.serve.apis.interface import text_of
from pyspec.text.forms import without_pictures
from pyspec.text.parts import object_of

TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
"""Types of text parts."""


@dataclass(frozen=True)
class KnownTool:
    """A tool whose schema the API defines.

    description, parameters: of its function, unless the request has its own. place: the field of a call's item that holds the
    arguments. blank: default members of that field, which the arguments replace. beside: further fields of the item.
    """

    description: str
    parameters: Mapping[str, Any]
    place: str
    blank: Mapping[str, Any]
    beside: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call's item, as the model writes them."""
        known = self.parameters["properties"]
        members = item[self.place].items()
        return {k: v for k, v in members if v is not None and (k in known or not known)}


def _schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_LIST = {"type": "array", "items": {"type": "string"}}
_MS = {"type": "integer", "description": "How long it may take, milliseconds."}
_KNOWN = {
    "local_shell": KnownTool(
        "Runs a program with its arguments, and returns what it writes.",
        _schema("command", command=_LIST, working_directory={"type": "string"}, timeout_ms=_MS),
        "action",
        {"type": "exec", "command": [], "env": {}},
    ),
    "shell": KnownTool(
        "Runs commands of a shell, and returns what each of them writes.",
        _schema("commands", commands=_LIST, timeout_ms=_MS),
        "action",
        {"commands": []},
    ),
    "apply_patch": KnownTool(
        "Creates, changes or deletes a file.",
        _schema(
            "type",
            "path",
            type={"enum": ["create_file", "update_file", "delete_file"]},
            path={"type": "string"},
            diff={
                "type": "string",
                "description": "Lines behind ' ', '-' or '+', each place behind a line of @@; of a new file all behind '+'.",
            },
        ),
        "operation",
        {"type": "update_file", "path": "", "diff": ""},
    ),
    "tool_search": KnownTool("Finds tools.", _schema(), "arguments", {}, {"execution": "client"}),
}
"""Client-run tools that OpenAI's models know without a schema."""

KINDS = ("function", "custom", "namespace", *_KNOWN)
"""Types of client-run tools; a namespace holds tools of the other types."""

CALLS = ("function_call", "custom_tool_call", *(f"{kind}_call" for kind in _KNOWN))
"""Types of items that call them."""

OUTPUTS = (*(f"{call}_output" for call in CALLS), "tool_search_output")
"""Types of items with a call's output."""

SERVERS = (
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_list_tools",
    "additional_tools",
)  # fmt: skip
"""Types of items that are skipped: OpenAI's server ran these tools, and the model's text has their results."""


@dataclass(frozen=True)
class ClientTool:
    """A tool that the client runs. definition: as in the request. namespace: the name of the namespace that holds it."""

    definition: Mapping[str, Any]
    namespace: str | None = None

    @property
    def kind(self) -> str:
        return str(self.definition.get("type", "function"))

    @property
    def name(self) -> str:
        """Its name for the model."""
        own = self.kind if self.kind in _KNOWN else self.definition.get("name")
        return flat_name(own, self.namespace)

    def function(self) -> dict[str, Any]:
        """The tool as a chat's function."""
        if known := _KNOWN.get(self.kind):
            about = {"description": known.description, "parameters": known.parameters}
            own = {key: self.definition[key] for key in about if self.definition.get(key)}
            return {"name": self.name, **about, **own}
        if self.kind == "function":
            fields = {key: value for key, value in self.definition.items() if key != "type"}
            return {**fields, "name": self.name}
        return text_function(self.name, self.definition)

    def item(self, call: str, text: str) -> dict[str, Any]:
        """A call of the tool as an item. call: its id. text: its arguments so far."""
        if known := _KNOWN.get(self.kind):
            arguments = {**known.blank, **_object(text)}
            item = {"type": f"{self.kind}_call", "call_id": call, **known.beside}
            return {**item, known.place: arguments}
        where = {} if self.namespace is None else {"namespace": self.namespace}
        named = {"call_id": call, "name": self.definition.get("name"), **where}
        if self.kind == "custom":
            return {"type": "custom_tool_call", **named, "input": text_of_call(text)}
        return {"type": "function_call", **named, "arguments": text}


def flat_name(name: Any, namespace: Any = None) -> str:
    """A tool's name prefixed with its namespace, as MCP writes it. Raises InputError for a name that is not a text."""
    if not isinstance(name, str):
        raise InputError("a tool has no name")
    return f"{str(namespace).removesuffix('__')}__{name}" if namespace else name


def client_tools(tools: Iterable[dict[str, Any]]) -> Iterator[ClientTool]:
    """Client-run tools in a request's `tools`. Raises InputError."""
    for tool in tools:
        if tool.get("type") == "namespace":
            name = flat_name(tool.get("name"))
            yield from (ClientTool(each, name) for each in tool["tools"])
        elif tool.get("type") in KINDS and not _is_remote(tool):
            yield ClientTool(tool)


def found_tools(items: Any) -> Iterator[dict[str, Any]]:
    """Tools in a conversation's items: results of a tool search, or additional ones."""
    for item in items if isinstance(items, list) else ():
        if item.get("type") in ("tool_search_output", "additional_tools"):
            yield from item["tools"]


def _is_remote(tool: Mapping[str, Any]) -> bool:
    """Whether OpenAI's server would run it: a shell in a container, or its own tool search."""
    where = tool.get("environment")
    elsewhere = isinstance(where, dict) and where.get("type") != "local"
    return elsewhere or (tool["type"] == "tool_search" and tool.get("execution") != "client")


def flat_choice(choice: Any, tools: Iterable[ClientTool]) -> Any:
    """A `tool_choice` with tools' names for the model."""
    names = {tool.definition.get("name", tool.kind): tool.name for tool in tools}

    def flat(named: Any) -> Any:
        name = names.get(named.get("name", named.get("type"))) if isinstance(named, dict) else None
        return {"type": "function", "name": name} if name else named

    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {**choice, "tools": [flat(each) for each in choice.get("tools") or ()]}
    return flat(choice)


def call_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item's call in a chat's format. Raises InputError."""
    kind = item["type"].removesuffix("_call")
    known = _KNOWN.get(kind)
    name = kind if known else flat_name(item["name"], item.get("namespace"))
    if known:
        arguments = json.dumps(known.arguments(item), ensure_ascii=False)
        function = {"name": name, "arguments": arguments}
    elif kind == "custom_tool":
        function = text_call(name, item["input"])
    else:
        function = {"name": name, "arguments": item["arguments"]}
    return {"id": _id(item), "type": "function", "function": function}


def result_message(item: Mapping[str, Any]) -> dict[str, Any]:
    """A call's output as a message of a chat. Raises InputError."""
    kind = item["type"]
    if kind == "shell_call_output":
        text = "\n".join(map(_ran, item["output"]))
    elif kind == "apply_patch_call_output":
        failed = "The call failed:\n" if item["status"] == "failed" else ""
        text = failed + (item.get("output") or item["status"])
    elif kind == "tool_search_output":
        names = [tool.name for tool in client_tools(item["tools"])]
        text = f"Tools that can be called now: {', '.join(names) or 'none'}."
    else:
        text = text_of(without_pictures(item["output"]), TEXTS)
    return {"role": "tool", "tool_call_id": _id(item), "content": text}


def _ran(part: Mapping[str, Any]) -> str:
    """A command's output, with its exit code."""
    outcome = part["outcome"]
    ended = f"exit code {outcome['exit_code']}" if outcome["type"] == "exit" else "timed out"
    return "\n".join(filter(None, (part["stdout"], part["stderr"], ended)))


def _id(item: Mapping[str, Any]) -> Any:
    """The id of an item's call. For local shells, some clients send the item's id instead."""
    return item.get("call_id") or item["id"]


def _object(text: str) -> dict[str, Any]:
    """Arguments as an object, empty where they were cut."""
    return object_of(text or "{}") or {}
