"""OpenAI's `response_format` and `tool_choice`, shared by every interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspec.errors import InputError
from pyspec.grammar.languages import Language, of_choice, of_grammar, of_regex
from pyspec.grammar.schemas import ANY_OBJECT, of_schema


def format_language(form: Mapping[str, Any] | None) -> Language | None:
    """Return the language of a `response_format`, or None for any text. Raises InputError."""
    if not form:
        return None
    if not isinstance(form, Mapping):
        raise InputError(
            f"response_format is {str(form)[:80]!r}", 'give {"type": "json_object"} or the like'
        )
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = form.get("schema")
        return of_schema(ANY_OBJECT if schema is None else schema)
    if kind == "json_schema":
        holder = form.get("json_schema")
        schema = holder.get("schema") if isinstance(holder, Mapping) else None
        return of_schema(schema if schema is not None else form.get("schema"))
    if kind not in _OTHERS:
        hint = f"use text, json_object, json_schema, {', '.join(_OTHERS)}"
        raise InputError(f"response_format is {kind!r}", hint)
    return _OTHERS[kind](form.get(str(kind)))


_OTHERS: dict[Any, Callable[[Any], Language]] = {
    "regex": of_regex,
    "choice": of_choice,
    "grammar": of_grammar,
}
"""Formats that are no JSON; the key of what they demand is named as they are."""


def tools_left(
    tools: Sequence[Mapping[str, Any]], choice: Any
) -> tuple[list[Mapping[str, Any]], str | None]:
    """Return the functions that a `tool_choice` allows, and the call it requires.

    That is a function's name, "required" for any call, or None if the model may answer in text. Raises InputError.
    """
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        names = [_name_of(each) for each in allowed.get("tools") or ()]
        for name in names:
            _one_of(tools, name)
        left = [tool for tool in tools if tool["name"] in names]
        return left, _wanted(allowed.get("mode"))
    if isinstance(choice, Mapping):
        return list(tools), _one_of(tools, _name_of(choice))
    return list(tools), _wanted(choice)


def _name_of(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return None
    named = choice.get("function", choice.get("custom", choice))
    # a tool that the server would run has a type alone
    return named.get("name", named.get("type")) if isinstance(named, Mapping) else None


def _one_of(tools: Sequence[Mapping[str, Any]], name: Any) -> str:
    if not any(tool["name"] == name for tool in tools):
        raise InputError(f"tool_choice names {str(name)[:80]!r}, which is not among the tools")
    return str(name)


def _wanted(choice: Any) -> str | None:
    if choice not in (None, "auto", "required"):
        raise InputError(
            f"tool_choice is {str(choice)[:80]!r}", "use none, auto, required or a function"
        )
    return "required" if choice == "required" else None
