"""JSON schemas as languages: those of answers as they are, and those of tools as far as a grammar can hold them.

Agents send whatever schemas their tools have, and most of these were not written for a grammar. Whoever runs the tool checks its
arguments. Therefore a tool's schema is made looser where it cannot be held, and nowhere else.

Objects have no other properties than a schema lists, unless it says that there may be more, or several of its parts describe one
object together. OpenAI's strict mode demands `additionalProperties: false`, and llama.cpp takes it for granted: small models
invent properties until an answer's limit otherwise.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib.metadata import version
from itertools import chain
from typing import Any
from urllib.parse import unquote

from llguidance import LLMatcher, LLParserLimits

from pyspec.errors import InputError
from pyspec.grammar.languages import OWN_BYTES, Language, literal
from pyspec.vocab.tokenizer import call_with_stack

log = logging.getLogger("pyspec")

_ONE = {
    "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "additionalItems",
}  # fmt: skip
_MANY = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
_NAMED = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
}  # fmt: skip
"""Keywords of one schema, of a list of them, and of schemas by name."""

SCHEMA_DEPTH = 100
"""Deepest nesting of a schema; llguidance reads 128 levels."""

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

_SPACE = r" |\n( {0,20}|\t{1,6})"
# once in each place: at high temperatures a model would otherwise write spaces for ever
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


def places(schema: Any, at: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each part that is an object with its address, the innermost first. A part may be changed when it comes."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        inside = f"{at}/{key}"
        if key in _NAMED and isinstance(value, dict):
            for name, part in value.items():
                yield from places(part, f"{inside}/{name}")
        elif key in _MANY and isinstance(value, list):
            for n, part in enumerate(value):
                yield from places(part, f"{inside}/{n}")
        elif key in _ONE:
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


def of_schema(schema: Any) -> Language:
    """The JSON texts that are valid under a schema, whose objects are closed. Raises InputError for one that cannot be held."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InputError("the JSON schema is not an object")
    _check_depth(schema)
    return Language(f"%json {_strict(json.dumps(schema))}")


@lru_cache(maxsize=64)
def _strict(text: str) -> str:
    """A schema as llguidance takes it. Raises InputError."""
    made = json.loads(text)
    _make_plain(made)
    _close(made)
    written = _written(made)
    if not (why := _read(written)[0]):
        return written
    at, key = next(_blamed(json.loads(text), why), ("", ""))
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
    """Whether this llguidance takes a pattern of spaces. Without one there are none: a model may write them for ever."""
    major, minor = version("llguidance").split(".")[:2]
    return (int(major), int(minor)) >= (1, 9)


def _written(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """Write a schema with our options; `lenient` has llguidance leave out keywords that it lacks."""
    spaces = {"whitespace_pattern": _SPACE} if _takes_spaces() else {"whitespace_flexible": False}
    options = {"lenient": lenient, "coerce_one_of": True, **spaces}
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
    return (messages[-1], []) if failed else ("", messages)


def _make_plain(whole: Any) -> None:
    """Leave out what llguidance does not take and what demands nothing, and write the rest in keywords that it takes.

    Seconds have at most nine digits behind their point: small models write zeros for ever.
    """
    for _, part in places(whole):
        if isinstance(form := part.get("format"), str) and form not in _FORMATS:
            del part["format"]
        if part.get("format") in ("time", "date-time"):
            part["allOf"] = [*part.get("allOf", ()), {"pattern": _NANOSECONDS}]
        if part.get("uniqueItems") is False:
            del part["uniqueItems"]
        if isinstance(pattern := part.get("pattern"), str):
            part["pattern"] = _SAME.get(pattern, pattern)
        if isinstance(least := part.get("minItems"), (int, float)) and least > _MAX_ITEMS:
            raise InputError(f"a list has at least {least} items", f"use {_MAX_ITEMS} at most")
        for key in _COUNTS & part.keys():
            if isinstance(part[key], float) and part[key].is_integer():
                part[key] = int(part[key])
        if isinstance(draft := part.get("$schema"), str):
            part["$schema"] = draft.replace("http://json-schema.org/draft/20", "https://json-schema.org/draft/20")  # fmt: skip
        _write_names_as_patterns(part, whole)


def _write_names_as_patterns(part: dict[str, Any], whole: Any) -> None:
    """Write which names a dictionary's keys may have, as pydantic and zod say it, as patterns of them."""
    names = part.get("propertyNames")
    found = pointed(whole, names["$ref"]) if isinstance(names, dict) and "$ref" in names else names
    if not isinstance(found, dict) or part.keys() & {"properties", "patternProperties"}:
        return
    demands = found.keys() - {"type", "title", "description"}
    values = found.get("enum", [found["const"]] if "const" in found else ())
    pattern = found.get("pattern") if demands == {"pattern"} else ""
    if demands in ({"enum"}, {"const"}) and all(isinstance(each, str) for each in values):
        pattern = f"^({'|'.join(map(re.escape, values))})$"
    if pattern:
        value = part.get("additionalProperties", True)
        part |= {"patternProperties": {pattern: value}, "additionalProperties": False}
    if pattern or (not demands and found.get("type", "string") == "string"):
        del part["propertyNames"]


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


def _holdable(made: dict[str, Any]) -> dict[str, Any]:
    for _, part in places(made):
        _standardise(part)
    _make_plain(made)
    if isinstance(found := pointed(made, made.get("$ref")), dict):
        made = {**{key: value for key, value in made.items() if key != "$ref"}, **found}
    _close(made)
    made["type"] = "object"
    for _ in range(_MAX_TRIES):
        why, left_out = _read(_written(made, lenient=True))
        if not why:
            for keyword in left_out:
                log.info("left out of a tool's schema: %s", keyword)
            return made
        if not (blamed := [*_blamed(made, why)]):
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
    made = {**found, **{key: whole[key] for key in ("$defs", "definitions") if key in whole}}
    return {} if _read(_written(made, lenient=True))[0] else made


def _standardise(part: dict[str, Any]) -> None:
    """Write a part as the standard has it: types in capitals and `nullable` are OpenAPI's."""
    part.pop("$id", None)
    named = part.pop("type", None)
    types = named if isinstance(named, list) else [named]
    known = [str(kind).lower() for kind in types if str(kind).lower() in _TYPES]
    if known and part.get("nullable") is True:
        known = list(dict.fromkeys([*known, "null"]))
        if isinstance(values := part.get("enum"), list) and None not in values:
            part["enum"] = [*values, None]
    if known:
        part["type"] = known[0] if len(known) == 1 else known


# -- closed objects ----------------------------------------------------------------------------------------------------


def _close(whole: dict[str, Any]) -> None:
    """Close objects at every depth, but for those that several parts describe together: one would forbid what others list."""
    due = [part for _, part in places(whole) if len(_describing(whole, part)) + _lists(part) > 1]
    together = set[int]()
    while due:
        part = due.pop()
        if id(part) not in together:
            together.add(id(part))
            due += chain.from_iterable(_describing(whole, part))
    for _, part in places(whole):
        if _lists(part) and "additionalProperties" not in part and id(part) not in together:
            known = part["properties"] if isinstance(part.get("properties"), dict) else {}
            required = part["required"] if isinstance(part.get("required"), list) else []
            unlisted = {name: True for name in required if isinstance(name, str)}
            part |= {"properties": known | unlisted | known, "additionalProperties": False}


def _lists(part: Mapping[str, Any]) -> bool:
    """Whether a part lists properties."""
    return any(isinstance(part.get(key), dict) for key in ("properties", "patternProperties"))


def _describing(whole: Mapping[str, Any], part: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Other schemas of the same object as a part that may list properties; alternatives are in one list."""
    several = [part.get("anyOf"), part.get("oneOf"), [pointed(whole, part.get("$ref"))]]
    alone = [part.get(key) for key in ("if", "then", "else")]
    alone += part["allOf"] if isinstance(part.get("allOf"), list) else []
    if isinstance(dependent := part.get("dependentSchemas"), dict):
        alone += dependent.values()
    silent = {"required", "title", "description", "type", "pattern"}
    made = [
        [way for way in ways if isinstance(way, dict) and way.keys() - silent]
        for ways in (*several, *([each] for each in alone))
        if isinstance(ways, list)
    ]
    return [ways for ways in made if ways]
