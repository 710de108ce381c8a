"""Conversion of tools of Anthropic's Messages into functions of a chat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspec.errors import InputError

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _commands(*names: str, **fields: Any) -> dict[str, Any]:
    """The schema of a tool whose `command` decides which of the other fields it needs."""
    command = {"type": "string", "enum": list(names)}
    return {"type": "object", "properties": {"command": command, **fields}, "required": ["command"]}


_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "First and last line to view, from 1; -1 is the last one.",
}
_EDITING: Mapping[str, Any] = {
    "path": _text("The file or folder."),
    "view_range": _RANGE,
    "file_text": _text("create: the content."),
    "old_str": _text("str_replace: the text to replace, which must be in the file once."),
    "new_str": _text("str_replace: the text in its place."),
    "insert_line": _number("insert: the line behind which to insert, 0 for the beginning."),
    "insert_text": _text("insert: the text."),
}
_EDITS = ("view", "create", "str_replace", "insert")
_KNOWN: tuple[tuple[re.Pattern[str], str, Mapping[str, Any]], ...] = (
    (
        re.compile(r"bash_\d+"),
        "Runs a command in a shell that stays open, and returns what it writes.",
        {
            "type": "object",
            "properties": {
                "command": _text("The command; not needed with restart."),
                "restart": {"type": "boolean", "description": "Whether to begin a new shell."},
            },
        },
    ),
    (
        re.compile(r"text_editor_\d+"),
        "Views, creates and edits files.",
        _commands(*_EDITS, **_EDITING),
    ),
    (
        re.compile(r"memory_\d+"),
        "Keeps notes in files below /memories, which later conversations can read. View the folder first.",
        _commands(
            *_EDITS,
            "delete",
            "rename",
            **_EDITING,
            old_path=_text("rename: the present path."),
            new_path=_text("rename: the new path."),
        ),
    ),
)
"""Anthropic's tools that clients run and whose schemas are public: type, description, schema."""

_CLIENTS_OWN = re.compile(r"(bash|text_editor|memory|computer|browser)_")
# types of tools that clients run; unless listed above, only Anthropic's models know their schemas


def is_function(tool: Mapping[str, Any]) -> bool:
    """Whether the client runs a tool, rather than Anthropic's server. Raises InputError for a tool without a known schema."""
    kind = str(tool.get("type", ""))
    if "input_schema" in tool or _known(tool) is not None:
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
    """A tool as a chat's function. The request's description and schema take precedence over known ones."""
    description, schema = _known(tool) or ("", {})
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema", schema)}
    if text := tool.get("description") or description:
        function["description"] = text
    return {"type": "function", "function": function}


def _known(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    kind = str(tool.get("type", ""))
    found = ((text, schema) for pattern, text, schema in _KNOWN if pattern.fullmatch(kind))
    return next(found, None)


def chat_choice(choice: Mapping[str, Any]) -> str | dict[str, Any] | None:
    """A chat's `tool_choice` for Anthropic's. Raises InputError."""
    kind = choice.get("type", "auto")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in _CHOICES:
        raise InputError(f"tool_choice is {str(kind)[:40]!r}", "use auto, any, tool or none")
    return _CHOICES[kind]
