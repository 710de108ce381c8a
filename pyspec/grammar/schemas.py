"""JSON schemas of tools in a form from which a grammar can always be made.

Agents send whatever schemas their tools have, and most of these were not written for a grammar. A call that a grammar allows need
not follow the whole schema, since whoever runs the tool checks its arguments. Therefore what a grammar cannot hold is left out
here, and never refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pyspec.errors import InputError
from pyspec.grammar.gbnf import SCHEMA_BYTES, schema_grammar

ANYTHING: dict[str, Any] = {"type": ["object", "array", "string", "number", "boolean", "null"]}
"""Any value. The converter takes an empty schema for an object."""

ANY_OBJECT: dict[str, Any] = {"type": "object"}

MOST_COUNTED = 1000
"""Longest text or list whose length a tool's grammar counts, and most places of all of them: each costs a rule."""

_MOST_PARTS = 2000
"""Parts of one schema, those behind references again each time; references of references could be any number."""

_MOST_LEVELS = 20
"""Deepest nesting; references to themselves end there."""

_HINTS = {
    "object": ("properties", "additionalProperties", "patternProperties", "required"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that tell the type of a schema which does not say it."""

_PLAIN = ("boolean", "null", "number", "integer")
_ESCAPE = re.compile(r"\\[A-Za-z0-9]")
# classes such as \d, which the converter copies into the grammar, where they mean nothing


def tool_schema(schema: Any) -> Any:
    """Return a schema that allows what this one allows, if not more, and from which a grammar can be made.

    Raises InputError for what is no schema.
    """
    if not schema or schema is True:
        return {}
    if not isinstance(schema, Mapping):
        raise InputError("the JSON schema of a tool is not an object")
    made = _Loosener(schema).loose(schema)
    if made.get("type") != "object" or len(json.dumps(made)) > SCHEMA_BYTES // 2:
        return ANY_OBJECT  # arguments are an object, whatever else is said
    return made


class _Loosener:
    """Makes one schema looser. root: the whole of it, in which references are looked up."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left, self._places = root, _MOST_PARTS, MOST_COUNTED

    def loose(self, schema: Any, level: int = 0) -> dict[str, Any]:
        """A part of it. level: how deep it lies."""
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0 or level > _MOST_LEVELS:
            return ANYTHING
        if "$ref" in schema:
            return self.loose(self._referred(schema["$ref"]), level + 1)
        ways = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if schema.get("properties"):
            ways = None  # they say which of the arguments go together
        if isinstance(ways, list) and (len(ways) == 1 or "allOf" not in schema):
            return {"anyOf": [self.loose(way, level + 1) for way in ways]}
        return self._of_values(schema, level)

    def _of_values(self, schema: Mapping[str, Any], level: int) -> dict[str, Any]:
        if "const" in schema:
            return {"const": schema["const"]}
        if isinstance(values := schema.get("enum"), list) and values:
            return {"enum": values}
        return self._of_types(schema, level)

    def _referred(self, ref: Any) -> Any:
        """What a reference points to; None if that is elsewhere."""
        if not isinstance(ref, str) or not ref.startswith("#"):
            return None
        found: Any = self._root
        for step in filter(None, ref[1:].split("/")):
            found = found.get(step) if isinstance(found, Mapping) else None
        return found

    def _of_types(self, schema: Mapping[str, Any], level: int) -> dict[str, Any]:
        given = schema.get("type") or _hinted(schema)
        types = [str(each).lower() for each in (given if isinstance(given, list) else [given])]
        if schema.get("nullable") is True:
            types.append("null")
        ways = [self._of_type(kind, schema, level) for kind in dict.fromkeys(types)]
        if ANYTHING in ways:
            return ANYTHING
        return ways[0] if len(ways) == 1 else {"anyOf": ways}

    def _of_type(self, kind: str, schema: Mapping[str, Any], level: int) -> dict[str, Any]:
        if kind == "object":
            return self._object(schema, level)
        if kind == "array":
            return self._array(schema, level)
        if kind == "string":
            return self._string(schema)
        return {"type": kind} if kind in _PLAIN else ANYTHING

    def _object(self, schema: Mapping[str, Any], level: int) -> dict[str, Any]:
        known, others = schema.get("properties"), schema.get("additionalProperties")
        if not isinstance(known, Mapping) or "allOf" in schema:
            known = {}
        made: dict[str, Any] = {"type": "object"}
        if known:
            made["properties"] = {
                k: self.loose(v, level + 1) for k, v in known.items() if v is not False
            }
            required = schema.get("required")
            required = required if isinstance(required, list) else ()
            made["required"] = [key for key in made["properties"] if key in required]
        if isinstance(others, Mapping) and others:
            made["additionalProperties"] = self.loose(others, level + 1)
        elif others is True or others == {} or "patternProperties" in schema:
            made["additionalProperties"] = True
        elif isinstance(schema.get("properties"), Mapping) and not known and "allOf" not in schema:
            made["properties"] = {}
        return made

    def _array(self, schema: Mapping[str, Any], level: int) -> dict[str, Any]:
        items = schema.get("items", schema.get("prefixItems"))
        made = {"type": "array", **self._counted(schema, "minItems", "maxItems")}
        if isinstance(items, list) and items:
            return {"type": "array", "prefixItems": [self.loose(item, level + 1) for item in items]}
        return {**made, "items": self.loose(items, level + 1)}

    def _string(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(pattern := schema.get("pattern"), str) and _is_usable(pattern):
            return {"type": "string", "pattern": pattern}
        made = {"type": "string", **self._counted(schema, "minLength", "maxLength")}
        form = schema.get("format")
        return {**made, "format": form} if isinstance(form, str) and len(made) == 1 else made

    def _counted(self, schema: Mapping[str, Any], *names: str) -> dict[str, int]:
        """Those bounds that a grammar can count beside the others."""
        given = {name: schema.get(name) for name in names}
        found = {k: n for k, n in given.items() if type(n) is int and 0 <= n <= self._places}
        self._places -= max(found.values(), default=0)
        return found


def _hinted(schema: Mapping[str, Any]) -> str:
    """The type of a schema that does not say it; "" for any."""
    return next((kind for kind, words in _HINTS.items() if schema.keys() & set(words)), "")


@lru_cache(maxsize=256)
def _is_usable(pattern: str) -> bool:
    """Whether a grammar can be made of a pattern."""
    if _ESCAPE.search(pattern) or len(pattern) > MOST_COUNTED:
        return False
    try:
        schema_grammar({"type": "string", "pattern": pattern})
    except InputError:
        return False
    return True
