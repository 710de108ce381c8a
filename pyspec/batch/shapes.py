"""What an answer has to look like: the grammars and the calls that bodies of OpenAI's ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from llama_cpp.llama_grammar import JSON_GBNF

from pyspec.errors import InputError
from pyspec.grammar.gbnf import schema_grammar

if TYPE_CHECKING:
    from collections.abc import Sequence


def grammar_of(body: Any) -> str | None:
    """The grammar that a body's `grammar` or `response_format` asks for, or what others call that. Raises InputError."""
    form = body.response_format or {"type": "text"}
    if form.get("type") == "text":
        form = _form_elsewhere(body) or form
    kind = form.get("type")
    if kind == "text":
        own: str | None = body.grammar
        return own
    if body.grammar is not None:
        raise InputError("grammar and a schema cannot both shape an answer", "leave one out")
    if kind == "json_object" and "schema" not in form:
        return str(JSON_GBNF)
    if kind == "json_object":
        return schema_grammar(form["schema"])
    if kind == "json_schema":
        holder = form.get("json_schema")
        schema = holder.get("schema") if isinstance(holder, dict) else None
        return schema_grammar(schema if schema is not None else form.get("schema"))
    raise InputError(f"response_format is {kind!r}", "use text, json_object or json_schema")


def _form_elsewhere(body: Any) -> dict[str, Any] | None:
    """What would be its `response_format`, from the fields that llama-server and vLLM have for it. Raises InputError."""
    given = (body.structured_outputs or {}).items()
    outputs = {key: value for key, value in given if value not in (None, False)}
    if unknown := outputs.keys() - {"json", "json_object"}:
        raise InputError(f"structured_outputs has {min(unknown)[:40]!r}", "use json or json_object")
    for schema in (body.json_schema, body.guided_json, outputs.get("json")):
        if schema is not None:
            read = msgspec.json.decode(schema) if isinstance(schema, str) else schema
            return {"type": "json_schema", "schema": read}
    return {"type": "json_object"} if outputs else None


def chosen(tools: list[dict[str, Any]], choice: Any) -> tuple[list[dict[str, Any]], str | None]:
    """Which tools a body's `tool_choice` leaves, and what it wants called.

    That is a function's name, "required", or None where the model may answer in words. Raises InputError.
    """
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        names = [_name_of(each) for each in allowed.get("tools") or ()]
        for name in names:
            _one_of(tools, name)
        left = [tool for tool in tools if tool["name"] in names]
        return left, _wanted(allowed.get("mode"))
    if isinstance(choice, dict):
        return tools, _one_of(tools, _name_of(choice))
    return tools, _wanted(choice)


def _name_of(choice: Any) -> Any:
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def _one_of(tools: Sequence[dict[str, Any]], name: Any) -> str:
    if not any(tool["name"] == name for tool in tools):
        raise InputError(f"tool_choice names {str(name)[:80]!r}, which is not among the tools")
    return str(name)


def _wanted(choice: Any) -> str | None:
    if choice not in (None, "auto", "required"):
        raise InputError(
            f"tool_choice is {str(choice)[:80]!r}", "use none, auto, required or a function"
        )
    return "required" if choice == "required" else None
