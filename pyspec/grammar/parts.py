"""The parts of a JSON schema, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

ONE = {
    "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "additionalItems",
}  # fmt: skip
MANY = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
NAMED = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
}  # fmt: skip
DEFINED = ("$defs", "definitions")


def with_parts(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Change the schemas within a schema."""
    made = dict(schema)
    for key, value in schema.items():
        if key in NAMED and isinstance(value, dict):
            made[key] = {name: change(part) for name, part in value.items()}
        elif key in MANY and isinstance(value, list):
            made[key] = [change(part) for part in value]
        elif key in ONE and isinstance(value, (dict, bool)):
            made[key] = change(value)
    return made


def places(schema: Any, at: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each part that is an object with its address, the innermost first."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        inside = f"{at}/{key}"
        if key in NAMED and isinstance(value, dict):
            for name, part in value.items():
                yield from places(part, f"{inside}/{name}")
        elif key in MANY and isinstance(value, list):
            for n, part in enumerate(value):
                yield from places(part, f"{inside}/{n}")
        elif key in ONE:
            yield from places(value, inside)
    yield at, schema


def pointed(whole: Any, ref: Any) -> Any:
    """What a reference such as `#/$defs/a` leads to within a schema; None if that is elsewhere, or nothing."""
    if not isinstance(ref, str) or ref[:1] != "#":
        return None
    found = whole
    for step in filter(None, unquote(ref[1:]).split("/")):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found
