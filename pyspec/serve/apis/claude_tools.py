"""Conversion of tools of Anthropic's Messages into functions of a chat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspec.errors import InputError

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


_CLIENTS_OWN = re.compile(r"(bash|text_editor|memory|computer|browser)_")
# types of tools that clients run and whose schemas only Anthropic's models know


def is_function(tool: Mapping[str, Any]) -> bool:
    """Whether the client runs a tool, rather than Anthropic's server. Raises InputError for a tool without a known schema."""
    kind = str(tool.get("type", ""))
    if "input_schema" in tool:
        return True
    if kind and _CLIENTS_OWN.match(kind):
        raise InputError(
            f"tools of the type {kind[:40]!r} are not known here", "send an input_schema with it"
        )
    if not kind:
        name = str(tool.get("name"))[:40]
        raise InputError(f"the tool {name!r} has no input_schema", "send one")
    return False


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
