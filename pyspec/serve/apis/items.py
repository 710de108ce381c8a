"""Conversion of items of OpenAI's Responses into messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspec.errors import InputError
from pyspec.requests.custom import text_call, text_function, text_of_call
from pyspec.text.forms import SYSTEM_ROLES
from pyspec.text.messages import content_text
from pyspec.text.parts import object_of


def messages_of(
    items: str | list[dict[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """A chat's messages. The model's items between two turns become one message. Raises InputError."""
    system = [instructions] if instructions else []
    if isinstance(items, str):
        made = [{"role": "user", "content": items}]
    else:
        if not items:
            raise InputError("input is empty")
        made = list(_turns(items))
        while made and made[0]["role"] in SYSTEM_ROLES:  # templates take one such message
            system.append(made.pop(0)["content"])
    return [{"role": "system", "content": "\n\n".join(system)}, *made] if system else made


def _turns(items: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    own: dict[str, Any] | None = None  # the model's open turn
    for item in items:
        if item.get("type") in SERVERS:
            continue
        part = _own_part(item)
        if part is None:
            if own is not None:
                yield own
                own = None
            yield _turn(item)
            continue
        if own is not None and _behind(own, part):
            yield own
            own = None
        own = own or {"role": "assistant"}
        calls = [*own.get("tool_calls", ()), *part.get("tool_calls", ())]
        own |= part
        if calls:
            own["tool_calls"] = calls
    if own is not None:
        yield own


def _behind(own: dict[str, Any], part: dict[str, Any]) -> bool:
    """Whether a part needs a new turn: a turn has one content and one reasoning, and no content after calls."""
    return bool(own.keys() & part.keys() - {"tool_calls"}) or (
        "content" in part and "tool_calls" in own
    )


def _own_part(item: dict[str, Any]) -> dict[str, Any] | None:
    """The part of a turn that one of the model's items is; None for other items."""
    kind = item.get("type", "message")
    if kind in CALLS:
        return {"tool_calls": [call_of(item)]}
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        return {"reasoning_content": content_text(parts) or ""}
    if kind == "message" and item.get("role") == "assistant":
        return {"content": content_text(item["content"]) or ""}
    return None


def _turn(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item["role"], "content": content_text(item["content"]) or ""}
    if kind in OUTPUTS:
        return result_message(item)
    if kind == "item_reference":
        hint = "send the items themselves, as clients do where store is false"
        raise InputError("item_reference needs stored responses, and none are stored", hint)
    hint = "use messages, calls of tools that you run, their outputs, and reasoning"
    raise InputError(f"an item of the type {str(kind)[:40]!r} cannot be read", hint)


_SEARCH = "tool_search"  # a search for tools, which agents have no name for
KINDS = ("function", "custom", "namespace", _SEARCH)  # of tools that clients run

_UNKNOWN = ("local_shell", "shell", "apply_patch", "computer", "computer_use_preview")
# types of tools that clients run and whose schemas only OpenAI's models know

CALLS = ("function_call", "custom_tool_call", "tool_search_call")  # types of items that call them
OUTPUTS = ("function_call_output", "custom_tool_call_output", "tool_search_output")  # of calls

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
        own = self.kind if self.kind == _SEARCH else self.definition.get("name")
        return flat_name(own, self.namespace)

    def function(self) -> dict[str, Any]:
        """The tool as a chat's function."""
        if self.kind == _SEARCH:
            about = {"description": "Finds tools.", "parameters": {"type": "object"}}
            own = {key: self.definition[key] for key in about if self.definition.get(key)}
            return {"name": self.name, **about, **own}
        if self.kind == "function":
            fields = {key: value for key, value in self.definition.items() if key != "type"}
            return {**fields, "name": self.name}
        return text_function(self.name, self.definition)

    def item(self, call: str, text: str) -> dict[str, Any]:
        """A call of the tool as an item. call: its id. text: its arguments so far."""
        if self.kind == _SEARCH:
            told = {"execution": "client", "arguments": object_of(text or "{}") or {}}
            return {"type": "tool_search_call", "call_id": call, **told}
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
        elif tool.get("type") in _UNKNOWN and not _is_remote(tool):
            hint = "send a function or a custom tool"
            raise InputError(f"tools of the type {tool['type']!r} are not known here", hint)
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
    if kind == _SEARCH:
        arguments = {key: each for key, each in item["arguments"].items() if each is not None}
        function = {"name": kind, "arguments": json.dumps(arguments, ensure_ascii=False)}
    elif kind == "custom_tool":
        function = text_call(flat_name(item["name"], item.get("namespace")), item["input"])
    else:
        name = flat_name(item["name"], item.get("namespace"))
        function = {"name": name, "arguments": item["arguments"]}
    return {"id": _id(item), "type": "function", "function": function}


def result_message(item: Mapping[str, Any]) -> dict[str, Any]:
    """A call's output as a message of a chat. Raises InputError."""
    if item["type"] == "tool_search_output":
        names = [tool.name for tool in client_tools(item["tools"])]
        text = f"Tools that can be called now: {', '.join(names) or 'none'}."
    else:
        text = content_text(item["output"], result=True) or ""
    return {"role": "tool", "tool_call_id": _id(item), "content": text}


def _id(item: Mapping[str, Any]) -> Any:
    """The id of an item's call. For searches, some clients send the item's id instead."""
    return item.get("call_id") or item["id"]
