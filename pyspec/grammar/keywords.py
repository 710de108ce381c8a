"""What single keywords of a JSON schema demand, said by others, and what is valid where they are not satisfied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, combinations, product
from math import inf
from typing import Any

from pyspec.errors import InputError

MAX_WAYS = 64
_MAX_ITEMS = 6
_MAX_LISTS = 400
_TYPES = ["null", "boolean", "object", "array", "number", "string"]
NO_LIST = {"type": [kind for kind in _TYPES if kind != "array"]}
NO_OBJECT = {"type": [kind for kind in _TYPES if kind != "object"]}
NOTES = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType",
    "contentSchema", "$comment", "$schema", "nullable", "discriminator", "example", "externalDocs", "xml",
}  # fmt: skip
"""Keywords that demand nothing."""
_CHAR = r"[\s\S]"

Schema = Any
"""A JSON schema: a dictionary or a boolean."""


def all_of(parts: Iterable[Schema]) -> Schema:
    """Return a schema of what satisfies all of these."""
    found = [part for part in parts if part is not True and part != {}]
    if any(part is False for part in found):
        return False
    return {"allOf": found} if len(found) > 1 else (found or [True])[0]


def any_of(parts: Iterable[Schema]) -> Schema:
    """Return a schema of what satisfies one of these at least."""
    found = [part for part in parts if part is not False]
    if any(part is True or part == {} for part in found):
        return True
    return {"anyOf": found} if len(found) > 1 else (found or [False])[0]


def few(found: Iterable[Any], most: int = MAX_WAYS) -> list[Any]:
    """Return these as a list. Raises InputError for too many."""
    taken = [each for each, _ in zip(found, range(most + 1))]
    if len(taken) > most:
        raise InputError("too many ways")
    return taken


def has(name: str) -> dict[str, Any]:
    """Return a schema of objects with this property."""
    return {"type": "object", "required": [name]}


def at(n: int, part: Schema) -> dict[str, Any]:
    """Return a schema of lists that are longer than n, with such an item at n."""
    return {"prefixItems": [True] * n + [part], "minItems": n + 1}


def longest(schema: Mapping[str, Any]) -> int:
    """Return the length of the longest list. Raises InputError for one of hundreds."""
    bound = schema.get("maxItems", inf)
    if schema.get("items") is False:
        bound = min(bound, len(schema.get("prefixItems", [])))
    if bound > MAX_WAYS:
        raise InputError("lists of any length")
    return int(bound)


# -- opposites ---------------------------------------------------------------------------------------------------------

LIMITS: dict[str, tuple[str, str, int]] = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
}
"""Keywords of one bound: the type, the keyword of the other side, and the step to it."""


def beyond(key: str, value: Any) -> Schema:
    """Return a schema of what a bound excludes."""
    kind, other, step = LIMITS[key]
    return {"type": kind, other: value + step} if value + step >= 0 or not step else False


def other_types(types: str | Sequence[str]) -> Schema:
    kinds = [types] if isinstance(types, str) else types
    if "integer" in kinds and "number" not in kinds:
        raise InputError("numbers that are no integers")
    left = [kind for kind in _TYPES if kind not in kinds]
    return {"type": left} if left else False


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    known: list[tuple[type, str]] = [(dict, "object"), (list, "array"), (str, "string")]
    return next((name for kind, name in known if isinstance(value, kind)), "number")


def are_apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether no value satisfies two schemas, as far as their types and listed values say so."""
    kinds, values = zip(*map(_types_and_values, (a, b)))
    if kinds[0].isdisjoint(kinds[1]):
        return True
    return None not in values and all(_kind(x) != _kind(y) or x != y for x, y in product(*values))


def _types_and_values(schema: Mapping[str, Any]) -> tuple[set[str], Sequence[Any] | None]:
    """The types of a schema's values, and these if they are listed."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        return {*map(_kind, values)}, values
    named = schema.get("type", _TYPES)
    kinds = [named] if isinstance(named, str) else named
    return {"number" if kind == "integer" else kind for kind in kinds}, None


def other_values(values: Sequence[Any]) -> Schema:
    """Return a schema of all but these values."""
    kinds = {kind: [value for value in values if _kind(value) == kind] for kind in _TYPES}
    left = [kind for kind, found in kinds.items() if not found]
    ways: list[Schema] = [{"type": left}] if left else []
    if words := kinds["string"]:
        ways.append({"type": "string", "pattern": f"^{_other_texts(set(words))}$"})
    if numbers := sorted(set(kinds["number"])):
        for low, high in zip([None, *numbers], [*numbers, None]):
            bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
            kept = {key: bound for key, bound in bounds.items() if bound is not None}
            ways.append({"type": "number", **kept})
    if kinds["boolean"]:
        ways += [{"const": value} for value in (True, False) if value not in kinds["boolean"]]
    for kind, least in (("array", "minItems"), ("object", "minProperties")):
        if any(kinds[kind]):
            raise InputError(f"all but one {kind}")
        ways += [{"type": kind, least: 1}] if kinds[kind] else []
    return any_of(ways)


def _other_texts(words: set[str]) -> str:
    """A regular expression of all texts but these."""
    heads: dict[str, set[str]] = {}
    for word in filter(None, words):
        heads.setdefault(word[0], set()).add(word[1:])
    ways = [] if "" in words else [""]
    ways += [_escaped(head) + _other_texts(rest) for head, rest in sorted(heads.items())]
    known = "".join(map(_escaped, sorted(heads)))
    ways.append(f"[^{known}]{_CHAR}*" if known else f"{_CHAR}+")
    return f"(?:{'|'.join(ways)})"


def _escaped(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{ord(char):04x}" if char <= "\uffff" else f"\\U{ord(char):08x}"


# -- rules -------------------------------------------------------------------------------------------------------------


def allowed_names(allowed: Schema) -> Schema:
    """What `propertyNames` demands."""
    if not isinstance(allowed, dict):
        return True if allowed else {"additionalProperties": False}
    kinds = allowed.get("type", "string")
    if "string" not in (kinds if isinstance(kinds, list) else [kinds]):
        return {"additionalProperties": False}
    known = {"type", "enum", "const", "pattern", "minLength", "maxLength"}
    if unknown := allowed.keys() - known - NOTES:
        raise InputError(f"propertyNames with {min(unknown)}")
    made = list[Schema]()
    values = allowed.get("enum", [allowed["const"]] if "const" in allowed else None)
    if values is not None:
        listed = dict.fromkeys((value for value in values if isinstance(value, str)), True)
        made.append({"properties": listed, "additionalProperties": False})
    patterns = [allowed["pattern"]] if "pattern" in allowed else []
    if allowed.keys() & {"minLength", "maxLength"}:
        count = f"{allowed.get('minLength', 0)},{allowed.get('maxLength', '')}"
        patterns.append(f"^{_CHAR}{{{count}}}$")
    made += [
        {"patternProperties": {each: True}, "additionalProperties": False} for each in patterns
    ]
    return all_of(made)


def _values(part: Schema) -> list[Any]:
    """The values that satisfy a schema, if they are listed in it."""
    found = part if isinstance(part, dict) else {}
    kinds: dict[Any, list[Any]] = {"boolean": [False, True], "null": [None]}
    if found.keys() <= {"type", *NOTES} and found.get("type") in kinds:
        return kinds[found["type"]]
    values = found.get("enum", [found["const"]] if "const" in found else None)
    if values is None or found.keys() - {"type", "enum", "const", *NOTES}:
        raise InputError("different items of any value")
    if any(_kind(value) in ("object", "array") for value in values):
        raise InputError("different lists or objects")
    named = found.get("type", _TYPES)
    allowed = [named] if isinstance(named, str) else named
    return [value for value in values if _kind(value) in allowed or _is_integer(value, allowed)]


def _is_integer(value: Any, kinds: Sequence[str]) -> bool:
    return "integer" in kinds and _kind(value) == "number" and value == int(value)


def different_items(schema: Mapping[str, Any]) -> Schema:
    """What `uniqueItems` demands, as all lists of different values one by one."""
    first, items = schema.get("prefixItems", []), schema.get("items", True)
    if schema["uniqueItems"] is False or schema.get("maxItems", inf) <= 1:
        return True
    rest = [] if items is False else _values(items)
    most = int(min(len(first) + len(rest), schema.get("maxItems", inf)))
    if most > _MAX_ITEMS:
        raise InputError("too many lists")
    kinds = [*map(_values, first), *([rest] * max(most - len(first), 0))]
    lists = chain.from_iterable(
        product(*kinds[:n]) for n in range(schema.get("minItems", 0), most + 1)
    )
    different = (list(each) for each in few(lists, 1 << 14) if _differ(each))
    return any_of([NO_LIST, {"enum": few(different, _MAX_LISTS)}])


def _differ(values: Sequence[Any]) -> bool:
    return all(_kind(a) != _kind(b) or a != b for a, b in combinations(values, 2))


def property_count(key: str, schema: Mapping[str, Any]) -> Schema | None:
    """What a number of properties demands where all of them are listed, or one is enough; None where llguidance knows."""
    listed, limit = schema.get("properties", {}), schema[key]
    if all(part is False for part in listed.values()):
        return None
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if key == "minProperties" and limit == 1 and not closed:
        none = {"type": "object", "properties": dict.fromkeys(listed, False), key: 1}
        return any_of([NO_OBJECT, *map(has, listed), none])
    if not closed:
        return None
    if key == "minProperties":
        found: list[Schema] = [{"required": list(e)} for e in few(combinations(listed, limit))]
    else:
        left = combinations(listed, max(len(listed) - limit, 0))
        found = [{"properties": dict.fromkeys(each, False)} for each in few(left)]
    return any_of([NO_OBJECT, *({"type": "object", **each} for each in found)])


def patterned(schema: Mapping[str, Any]) -> Schema | None:
    """`patternProperties` without patterns that demand nothing; None if there are none."""
    found = schema["patternProperties"]
    left = {name: part for name, part in found.items() if part is not True and part != {}}
    if "additionalProperties" in schema or len(left) == len(found):
        return None
    return {"patternProperties": left} if left else True


def dependent(schema: Mapping[str, Any]) -> Schema:
    """What `dependentRequired` demands."""
    return all_of(
        any_of([{"properties": {name: False}}, {"required": [name, *needed]}])
        for name, needed in schema["dependentRequired"].items()
        if needed
    )


def dependents(schema: Mapping[str, Any]) -> Schema:
    """What `dependentSchemas` demands."""
    return all_of(
        any_of([{"properties": {name: False}}, all_of([has(name), part])])
        for name, part in schema["dependentSchemas"].items()
    )


def lengths(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a schema says of the length of lists."""
    return {key: schema[key] for key in ("minItems", "maxItems") if key in schema}


Rule = Callable[[Mapping[str, Any]], Schema]
RULES: dict[str, Rule] = {
    "then": lambda _: True,
    "else": lambda _: True,
    "minContains": lambda _: True,
    "maxContains": lambda _: True,
    "dependentRequired": dependent,
    "dependentSchemas": dependents,
    "propertyNames": lambda schema: allowed_names(schema["propertyNames"]),
    "uniqueItems": different_items,
    "minProperties": lambda schema: property_count("minProperties", schema),
    "maxProperties": lambda schema: property_count("maxProperties", schema),
    "patternProperties": patterned,
}
"""What a schema's keyword demands, in other keywords; None to leave it. Other rules need the opposite of a schema."""
OPPOSITES: dict[str, Rule] = {
    "type": lambda schema: other_types(schema["type"]),
    "const": lambda schema: other_values([schema["const"]]),
    "enum": lambda schema: other_values(schema["enum"]),
    "required": lambda schema: any_of(
        {"type": "object", "properties": {name: False}} for name in schema["required"]
    ),
    "not": lambda schema: schema["not"],
    **{key: lambda schema, key=key: beyond(key, schema[key]) for key in LIMITS},  # type: ignore[misc]
}
"""What is valid where a keyword is not satisfied."""
