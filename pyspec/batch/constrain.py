"""Grammars for what an answer has to look like: JSON, a schema, calls of tools.

The converter of schemas recurses, so what strangers send is bounded before it gets there; grammars are checked by
`pyspec.limits`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar, json_schema_to_gbnf

from pyspec.errors import InputError
from pyspec.limits import check_grammar

if TYPE_CHECKING:
    from collections.abc import Sequence

DEEPEST = 64
"""Levels of a schema."""

LARGEST = 1 << 16
"""Bytes of a schema."""


class Constraint(LlamaGrammar):  # type: ignore[misc]  # llama_cpp is untyped
    """A grammar that an answer follows, from its first `trigger` on where there is one.

    Raises InputError where llama.cpp cannot use it.
    """

    def __init__(self, target: Any, grammar: str, trigger: str | None = None) -> None:
        check_grammar(grammar, target._model.vocab)  # noqa: SLF001 - llama_cpp has no public way
        super().__init__(_grammar=grammar)
        self.trigger = trigger


def grammar_of(body: Any) -> str | None:
    """The grammar that a body's `grammar` or `response_format` asks for. Raises InputError."""
    form = body.response_format or {"type": "text"}
    kind = form.get("type")
    if kind == "text":
        return str(body.grammar) if body.grammar is not None else None
    if body.grammar is not None:
        raise InputError("grammar and response_format cannot both shape an answer")
    if kind == "json_object" and "schema" not in form:
        return str(JSON_GBNF)
    if kind == "json_object":
        return schema_grammar(form["schema"])
    if kind == "json_schema":
        holder = form.get("json_schema")
        schema = holder.get("schema") if isinstance(holder, dict) else None
        return schema_grammar(schema if schema is not None else form.get("schema"))
    raise InputError(f"response_format is {kind!r}", "use text, json_object or json_schema")


def schema_grammar(schema: Any) -> str:
    """GBNF of a JSON schema. Raises InputError where it is too deep, too large or says what cannot be had."""
    if not isinstance(schema, (dict, bool)):
        raise InputError("the JSON schema is no object")
    _check_depth(schema)
    text = json.dumps(schema)
    if len(text) > LARGEST:
        raise InputError(f"the JSON schema is longer than {LARGEST} bytes")
    try:
        return str(json_schema_to_gbnf(text))
    except Exception as error:  # noqa: BLE001 - whatever the converter stumbles over, the schema is somebody's
        raise InputError(f"the JSON schema cannot be used: {str(error)[:200]}") from None


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise InputError(f"the JSON schema is more than {DEEPEST} levels deep")
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]


def tools_grammar(tools: Sequence[dict[str, Any]], choice: Any) -> tuple[str, bool]:
    """The grammar of calls, and whether the model may also answer in words: then it holds from a call's beginning on."""
    if isinstance(choice, dict):
        wanted = (choice.get("function") or {}).get("name")
        tools = [tool for tool in tools if tool["name"] == wanted]
        if not tools:
            raise InputError(f"tool_choice names {wanted!r}, which is no tool")
    elif choice not in (None, "auto", "required"):
        raise InputError(f"tool_choice is {choice!r}", "use none, auto, required or a function")
    schema = {"anyOf": [_call_schema(tool) for tool in tools]}
    rules = schema_grammar(schema if len(tools) > 1 else schema["anyOf"][0])
    lazy = choice in (None, "auto")
    inner = rules.replace("root ::=", "body ::=", 1)
    calls = 'root ::= call ("\\n"? call)*\n' if lazy else "root ::= call\n"
    return calls + 'call ::= "<tool_call>" nl body nl "</tool_call>"\nnl ::= "\\n"?\n' + inner, lazy


def _call_schema(tool: dict[str, Any]) -> dict[str, Any]:
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    return {
        "type": "object",
        "properties": {"name": {"const": tool["name"]}, "arguments": parameters},
        "required": ["name", "arguments"],
    }


def tools_text(tools: Sequence[dict[str, Any]], *, at_will: bool) -> str:
    """What the model is told of its tools, in the form that Hermes and Qwen models were trained on."""
    lines = "\n".join(json.dumps({"type": "function", "function": tool}) for tool in tools)
    when = "If one of them helps, call it" if at_will else "Call one of them"
    return (
        f"These functions can be called, one a line:\n<tools>\n{lines}\n</tools>\n"
        f"{when} by writing its name and arguments as JSON between tags:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )
