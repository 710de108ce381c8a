"""JSON schemas as languages: those of answers as they are, and those of tools as far as a grammar can hold them.

Agents send whatever schemas their tools have, and most of these were not written for a grammar. Whoever runs the tool checks its
arguments. Therefore a tool's schema is made looser where it cannot be held, and nowhere else.

Objects have no other properties than a schema lists, unless it says that there may be more. OpenAI's strict mode demands
`additionalProperties: false`, and llama.cpp takes it for granted: small models invent properties until an answer's limit
otherwise.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

from llguidance import LLMatcher, LLParserLimits

from pyspec.errors import InputError
from pyspec.grammar.languages import OWN_BYTES, Language, literal
from pyspec.vocab import call_with_stack

ONE = {
    "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "additionalItems",
}  # fmt: skip
MANY = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
NAMED = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
}  # fmt: skip
DEFINED = ("$defs", "definitions")


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any, str]]:
    """Yield where schemas stand within a schema: what holds each, its key there, and its address from the schema on."""
    for key, value in schema.items():
        if key in NAMED and isinstance(value, dict):
            yield from ((value, name, f"{key}/{name}") for name in value)
        elif key in MANY and isinstance(value, list):
            yield from ((value, n, f"{key}/{n}") for n in range(len(value)))
        elif key in ONE and isinstance(value, (dict, bool)):
            yield schema, key, key


def with_parts(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of a schema in which the schemas within it are changed."""
    made = {key: copy(value) for key, value in schema.items()}
    for holder, key, _ in _parts(made):
        holder[key] = change(holder[key])
    return made


def places(schema: Any, at: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each part that is an object with its address, the innermost first."""
    if isinstance(schema, dict):
        for holder, key, address in _parts(schema):
            yield from places(holder[key], f"{at}/{address}")
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


log = logging.getLogger("pyspec")

SCHEMA_DEPTH = 100  # deepest nesting of a schema; llguidance reads 128 levels

LIMITS = LLParserLimits(
    step_max_items=1_000_000,  # a grammar of single characters needs half of it with a large vocabulary
    initial_lexer_fuel=500_000,
    max_grammar_size=50_000,
    verbose_errors=False,  # they would show the whole state
)
STACK = 128 << 20
"""Stack of the threads that read grammars, bytes. llguidance recurses as deep as a grammar nests, and does not check."""

ANY_OBJECT: dict[str, Any] = {"type": "object"}

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

# once in each place: at high temperatures a model would otherwise write spaces for ever
_SPACE = r" |\n( {0,20}|\t{1,6})"
_FORMATS = {
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
}  # fmt: skip
_COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}
_SAME = {r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$"}
"""Patterns in use that look around, and the same without that: pydantic's for decimal numbers."""

_NANOSECONDS = r"^[^.]*(\.\d{1,9}([^\d][^.]*)?)?$"
_MAX_ITEMS = 10_000  # llguidance makes as many parts of a grammar, before it counts these
_MAX_TRIES = 16
_VALUED = {"pattern", "$ref", "type", "$schema"}
_NAMING = (r'"([^"]+)"', r"'([^']+)'", r"/(\S+)/", r"^\s*(\S.*)$", r"^(\S+)", r": (\S+)")
"""How refusals name keywords and values: quoted, by themselves, or first."""


def of_schema(schema: Any) -> Language:
    """The JSON texts that are valid under a schema, whose objects are closed. Raises InputError for one that cannot be held."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InputError("the JSON schema is not an object")
    _check_depth(schema)
    return Language(f"%json {_strict(json.dumps(schema))}")


@lru_cache(maxsize=64)
def _strict(schema: str) -> str:
    """A schema as llguidance takes it. Raises InputError."""
    whole = json.loads(schema)
    made = _written(closed(_plain(whole)))
    why, _ = _read(made)
    if not why:
        return made
    at, key = next(_blamed(whole, why), ("", ""))
    if why.startswith("Unimplemented keys: "):
        said = f"{key} at {at} cannot be followed"
    else:
        said = " ".join(line.strip() for line in why.splitlines()[:4])[:200]
        said = f"{key} at {at}: {said}" if key else said
    raise InputError(f"the JSON schema cannot be used: {said}", "leave that out")


def _blamed(schema: Any, why: str) -> Iterator[tuple[str, str]]:
    """The keywords of a schema that a refusal of llguidance names, itself or by a value, with their places."""
    words = {word for form in _NAMING for word in re.findall(form, why, re.MULTILINE)}
    if "min/maxProperties" in words:
        words = {"minProperties", "maxProperties"}
    for at, part in places(schema):
        for key, value in part.items():
            values = [value, value[1:]] if key in _VALUED and isinstance(value, str) else ()
            names = value if key == "patternProperties" and isinstance(value, dict) else values
            if key in words or not words.isdisjoint(names):
                yield at, key


def json_expression(schema: Any) -> str:
    """Return an expression for a schema that `tool_schema` returned, or one that is composed of those."""
    return f"%json {_written(schema, lenient=True)}"


def _check_depth(schema: Any) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > SCHEMA_DEPTH:
            raise InputError(f"the JSON schema is more than {SCHEMA_DEPTH} levels deep")
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for found in inside for each in found if isinstance(each, (dict, list))]
    if len(json.dumps(schema)) > OWN_BYTES:
        raise InputError(f"the JSON schema is longer than {OWN_BYTES} bytes")


@cache
def _takes_spaces() -> bool:
    """Whether this llguidance takes a pattern of spaces. Without one, only `,` and `:` have one: more might never end."""
    major, minor = version("llguidance").split(".")[:2]
    return (int(major), int(minor)) >= (1, 9)


def _written(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """Write a schema with our options; `lenient` has llguidance leave out keywords that it lacks."""
    options: dict[str, Any] = {
        "whitespace_pattern": _SPACE,
        "lenient": lenient,
        "coerce_one_of": True,
    }
    if not _takes_spaces():
        options.pop("whitespace_pattern")
        options |= {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
    text = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
    literal(text)  # which refuses what is not Unicode
    return text


@lru_cache(maxsize=512)
def _read(text: str) -> tuple[str, list[str]]:
    """Why llguidance does not take a schema, or nothing and what it leaves out."""

    def read() -> tuple[bool, list[str]]:
        grammar = LLMatcher.grammar_from_json_schema(text)
        return LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)

    try:
        failed, messages = call_with_stack(read, STACK)
    except ValueError as error:
        failed, messages = True, [str(error)]
    if not failed:
        return "", messages
    return messages[-1], []


def _plain(schema: Any, whole: Any = None) -> Any:
    """Leave out what llguidance does not take and what demands nothing, and write the rest in keywords that it takes.

    Seconds have at most nine digits behind their point: small models write zeros for ever.
    """
    if not isinstance(schema, dict):
        return schema
    whole = schema if whole is None else whole
    made = with_parts(schema, lambda part: _plain(part, whole))
    if isinstance(form := made.get("format"), str) and form not in _FORMATS:
        del made["format"]
    if made.get("format") in ("time", "date-time"):
        made["allOf"] = [*made.get("allOf", ()), {"pattern": _NANOSECONDS}]
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    if isinstance(pattern := made.get("pattern"), str):
        made["pattern"] = _SAME.get(pattern, pattern)
    if isinstance(least := made.get("minItems"), (int, float)) and least > _MAX_ITEMS:
        raise InputError(f"a list has at least {least} items", f"use {_MAX_ITEMS} at most")
    for key in _COUNTS & made.keys():
        if isinstance(made[key], float) and made[key].is_integer():
            made[key] = int(made[key])
    if isinstance(draft := made.get("$schema"), str):
        made["$schema"] = draft.replace(
            "http://json-schema.org/draft/20", "https://json-schema.org/draft/20"
        )
    return _names_as_patterns(made, whole)


def _names_as_patterns(schema: dict[str, Any], whole: Any) -> dict[str, Any]:
    """Write which names a dictionary's keys may have, as pydantic and zod say it, as patterns of them."""
    names = schema.get("propertyNames")
    found = pointed(whole, names["$ref"]) if isinstance(names, dict) and "$ref" in names else names
    if not isinstance(found, dict) or schema.keys() & {"properties", "patternProperties"}:
        return schema
    made = {key: value for key, value in schema.items() if key != "propertyNames"}
    demands = found.keys() - {"type", "title", "description"}
    if not demands and found.get("type", "string") == "string":
        return made
    values = found.get("enum", [found["const"]] if "const" in found else ())
    pattern = found.get("pattern") if demands == {"pattern"} else ""
    if demands in ({"enum"}, {"const"}) and all(isinstance(each, str) for each in values):
        pattern = f"^({'|'.join(map(re.escape, values))})$"
    if not pattern:
        return schema
    value = made.pop("additionalProperties", True)
    return {**made, "patternProperties": {pattern: value}, "additionalProperties": False}


# -- tools -------------------------------------------------------------------------------------------------------------


def tool_schema(schema: Any) -> dict[str, Any]:
    """Return the schema of a tool's arguments in a form that can be held. Raises InputError for what is no schema."""
    if not schema or schema is True:
        return NO_ARGUMENTS
    if not isinstance(schema, Mapping):
        raise InputError("the JSON schema of a tool is not an object")
    try:
        _check_depth(schema)
        return _tool_schema(json.dumps(schema))
    except InputError as error:
        log.info("any arguments of a tool are allowed: %s", error)
        return ANY_OBJECT


@lru_cache(maxsize=256)  # an agent sends the same tools with each request
def _tool_schema(text: str) -> dict[str, Any]:
    return call_with_stack(lambda: _holdable(json.loads(text)), STACK)


def _holdable(schema: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = _usual(_plain(schema))
    if isinstance(found := pointed(made, made.get("$ref")), dict):
        made = {**{key: value for key, value in made.items() if key != "$ref"}, **found}
    made = {**closed(made), "type": "object"}
    for _ in range(_MAX_TRIES):
        why, left_out = _read(_written(made, lenient=True))
        if not why:
            for keyword in left_out:
                log.info("left out of a tool's schema: %s", keyword)
            return made
        blamed = [*_blamed(made, why)]
        if not blamed:
            raise InputError(why)
        parts = dict(places(made))
        for at, key in blamed:
            log.info("left out of a tool's schema: %s at %s", key, at)
            parts[at].pop(key, None)
    raise InputError("too much of a tool's schema cannot be followed")


def part_of(whole: Mapping[str, Any], part: Any) -> dict[str, Any]:
    """Return an argument's schema by itself, with the definitions that it may refer to."""
    found = part if isinstance(part, dict) else {}
    if isinstance(behind := pointed(whole, found.get("$ref")), dict):
        found = {**behind, **{key: value for key, value in found.items() if key != "$ref"}}
    made = {**found, **{key: whole[key] for key in DEFINED if key in whole}}
    why, _ = _read(_written(made, lenient=True))
    return {} if why else made


def _usual(schema: Any) -> Any:
    """Write a schema as the standard has it: types in capitals and `nullable` are OpenAPI's."""
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in with_parts(schema, _usual).items() if key != "$id"}
    named = made.get("type")
    types = named if isinstance(named, list) else [named]
    known = [str(kind).lower() for kind in types if str(kind).lower() in _TYPES]
    if known and made.get("nullable") is True:
        known = list(dict.fromkeys([*known, "null"]))
        if isinstance(values := made.get("enum"), list) and None not in values:
            made["enum"] = [*values, None]
    if known:
        made["type"] = known[0] if len(known) == 1 else known
    else:
        made.pop("type", None)
    return made


_JOINED = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas")
"""Keywords whose schemas are of the same place as their own; so is `$ref`."""
_LISTS = {"properties", "patternProperties"}
_CONDITIONS = {*_LISTS, "additionalProperties", "if", "then", "else", "dependentSchemas"}
_MAX_STEPS = 100_000


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects are closed at every depth. Raises InputError for one that takes too long."""
    return _Closing(schema).made()


class _Closing:
    """Closes one schema. A part that is also joined with others is written again, as a definition that stays open."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole, self._steps = whole, 0
        self._names: dict[str, str] = {}
        self._due: list[tuple[str, Any]] = []

    def made(self) -> dict[str, Any]:
        made: dict[str, Any] = self._closed(self._whole)
        defs = dict[str, Any]()
        while self._due:
            name, part = self._due.pop()
            defs[name] = self._open(part)
        return {**made, "$defs": {**made.get("$defs", {}), **defs}} if defs else made

    def _closed(self, part: Any, outer: Sequence[Mapping[str, Any]] = ()) -> Any:
        """Close a part. outer: those that it is joined with and that list properties at the same place."""
        if not isinstance(part, dict):
            return part
        if "$id" in part and part is not self._whole:
            return closed(part)  # its references begin there
        if not outer and _is_alone(part):
            return with_parts(part, self._closed)
        ways = next((key for key in ("anyOf", "oneOf") if isinstance(part.get(key), list)), "")
        listed = [*outer, *self._listing({key: part[key] for key in part if key != ways})]
        made = self._open(part)
        if ways:
            made[ways] = [self._closed(way, listed) for way in part[ways]]
        elif _is_open(listed) and part.get("additionalProperties") is not False:
            made = self._with_end(made, listed)
        return made

    def _with_end(
        self, made: dict[str, Any], listed: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Forbid all properties but the listed ones, in a part that is still open."""
        names = {
            name: True
            for each in listed
            for key in ("properties", "required")
            for name in _names(each, key)
        }
        patterns = {name: True for each in listed for name in _names(each, "patternProperties")}
        self._step(len(names))
        own = made if made.keys().isdisjoint(("$ref", "allOf")) else {}
        end: dict[str, Any] = {
            "properties": {**own.get("properties", {}), **{k: True for k in names if k not in own.get("properties", ())}},
            "additionalProperties": False,
        }  # fmt: skip
        if patterns:
            end["patternProperties"] = {**patterns, **own.get("patternProperties", {})}
        if own:
            return {**made, **end}
        # drafts before 2019 take nothing beside a reference
        joined = [{"$ref": made.pop("$ref")}] if "$ref" in made else []
        return {**made, "allOf": [*made.get("allOf", ()), *joined, end]}

    def _open(self, part: Any) -> Any:
        """Close the schemas within a part, and leave the part itself open."""
        if not isinstance(part, dict):
            return part
        made = with_parts({key: part[key] for key in part if key not in _JOINED}, self._closed)
        made |= with_parts({key: part[key] for key in part if key in _JOINED}, self._open)
        if "$ref" in part and isinstance(pointed(self._whole, part["$ref"]), dict):
            made["$ref"] = f"#/$defs/{self._opened(part['$ref'])}"
        return {key: made[key] for key in part}

    def _opened(self, ref: str) -> str:
        """The name of a definition of what a reference leads to, left open."""
        self._listing({"$ref": ref})  # whose steps count for each: llguidance joins each anew
        if ref not in self._names:
            self._names[ref] = f"pyspec-open-{len(self._names)}"
            self._due.append((self._names[ref], pointed(self._whole, ref)))
        return self._names[ref]

    def _listing(self, part: Any) -> list[Mapping[str, Any]]:
        """A part and all that is joined with it, as far as they say which properties there may be."""
        found, due, seen = list[Mapping[str, Any]](), [part], set[str]()
        while due:
            each = due.pop()
            self._step()
            if not isinstance(each, dict):
                continue
            if not each.keys().isdisjoint((*_LISTS, "required", "additionalProperties")):
                self._step(len(_names(each, "properties")))
                found.append(each)
            due += reversed([*_joined(each)])
            if isinstance(ref := each.get("$ref"), str) and ref not in seen:
                seen.add(ref)
                due.append(pointed(self._whole, ref))
        return found

    def _step(self, n: int = 1) -> None:
        self._steps += n
        if self._steps > _MAX_STEPS:
            raise InputError("the JSON schema joins too many parts", "make it simpler")


def _names(part: Mapping[str, Any], key: str) -> list[str]:
    found = part.get(key)
    return (
        [name for name in found if isinstance(name, str)] if isinstance(found, (dict, list)) else []
    )


def _is_open(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any of the parts of one place lists properties, and none allows others."""
    lists = any(isinstance(part.get(key), dict) for part in parts for key in _LISTS)
    return lists and all(part.get("additionalProperties", False) is False for part in parts)


def _joined(part: Mapping[str, Any]) -> Iterator[Any]:
    for key in _JOINED:
        found = part.get(key)
        if isinstance(found, list):
            yield from found
        elif isinstance(found, dict):
            yield from found.values() if key == "dependentSchemas" else [found]


def _is_alone(part: Mapping[str, Any]) -> bool:
    """Whether a part says nothing of properties itself: it only refers to one schema, or to several to choose from."""
    joined = [key for key in ("allOf", "$ref", "anyOf", "oneOf") if key in part]
    sole = len(joined) < 2 and (joined != ["allOf"] or len(part["allOf"]) == 1)
    return sole and part.keys().isdisjoint(_CONDITIONS)
