"""JSON schemas as languages: those of answers as they are, and those of tools as far as a grammar can hold them.

Agents send whatever schemas their tools have, and most of these were not written for a grammar. Whoever runs the tool checks its
arguments. Therefore a tool's schema is made looser where it cannot be held, and nowhere else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from pyspec.errors import InputError
from pyspec.grammar.languages import OWN_BYTES, Language, literal
from pyspec.grammar.references import DEFINED, pointed, with_parts
from pyspec.grammar.rewrites import rewritten
from pyspec.vocab.deep_stack import call_with_stack

log = logging.getLogger("pyspec")

SCHEMA_DEPTH = 100
"""Deepest nesting of a schema; llguidance reads 128 levels."""

LIMITS = LLParserLimits(
    step_max_items=1_000_000,  # a grammar of single characters needs half of it with a large vocabulary
    initial_lexer_fuel=500_000,
    max_grammar_size=50_000,
    verbose_errors=False,  # they would show the whole state
)
STACK = 128 << 20
"""Of the threads that read grammars: llguidance recurses as deep as a grammar nests, and does not check."""

ANY_OBJECT: dict[str, Any] = {"type": "object"}

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

_SPACE = r" |\n( {0,20}|\t{1,6})"
# once in each place: a model that draws from a wide distribution would else write spaces for ever
_FORMATS = {
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
}  # fmt: skip
_COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}
_OUTSIDE = {"$ref", *DEFINED}
"""Keywords that cannot be tried by themselves."""

_NO_SCHEMA = (RecursionError, TypeError, AttributeError, LookupError, ValueError, ArithmeticError)
"""What a part raises that is not what the standard says."""
_SAME = {r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$"}
"""Patterns that look around and are in use, without that: pydantic's of decimal numbers."""

_CONDITIONS = {"not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties"}
"""Keywords whose schemas are about what others allow."""

_MAX_PARTS = 1000
_NANOSECONDS = r"^[^.]*(\.\d{1,9}([^\d][^.]*)?)?$"

Change = Callable[[dict[str, Any]], dict[str, Any]]


def of_schema(schema: Any) -> Language:
    """The JSON texts that are valid under a schema. Raises InputError for one that cannot be held, with what cannot."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InputError("the JSON schema is not an object")
    _check_depth(schema)
    return Language(f"%json {_strict(json.dumps(schema))}")


@lru_cache(maxsize=64)
def _strict(schema: str) -> str:
    """A schema as llguidance takes it. Raises InputError."""
    plain = _rebuilt(json.loads(schema), _plain)
    if isinstance(draft := plain.get("$schema"), str):
        plain["$schema"] = draft.replace(
            "http://json-schema.org/draft/20", "https://json-schema.org/draft/20"
        )
    if not (why := _problem(plain)):
        return _written(plain)
    try:
        return _written(_otherwise(plain))
    except InputError as error:
        why = f"{why}: {error}"
        raise InputError(f"the JSON schema cannot be used: {why}", "leave that out") from None


def _otherwise(schema: dict[str, Any], left_out: list[str] | None = None) -> dict[str, Any]:
    """Return a schema without the keywords that llguidance lacks, as `rewritten` does. Raises InputError if there is none."""
    try:
        made: dict[str, Any] = rewritten(schema, left_out)
    except _NO_SCHEMA as error:
        raise InputError(f"{type(error).__name__}, {error}") from None
    if why := _problem(made, lenient=left_out is not None):
        raise InputError(why)
    return made


def held(schema: Any) -> str:
    """Return an expression for a schema that `tool_schema` returned, or that is made of such."""
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
    options = {"whitespace_pattern": _SPACE, "lenient": lenient}
    if not _takes_spaces():
        options = {"whitespace_flexible": False, "lenient": lenient}
    text = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
    literal(text)  # which refuses what is not Unicode
    return text


def _problem(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """Why llguidance does not take a schema; empty if it does."""
    return _read(_written(schema, lenient=lenient))[0]


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
    return " ".join(line.strip() for line in messages[-1].splitlines()[:4])[:200], []


def _rebuilt(schema: Any, change: Change) -> Any:
    """Change a schema's parts, and then itself."""
    if not isinstance(schema, dict):
        return schema
    return change(with_parts(schema, lambda part: _rebuilt(part, change)))


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out what demands nothing and llguidance does not take: formats that it does not know, and `uniqueItems` false.

    A count such as 2.0 becomes 2. Some patterns that look around are written without that. Seconds have at most nine digits
    behind their point: small models write zeros for ever.
    """
    made = dict(schema)
    if isinstance(form := made.get("format"), str) and form not in _FORMATS:
        del made["format"]
    if made.get("format") in ("time", "date-time"):
        made["allOf"] = [*made.get("allOf", ()), {"pattern": _NANOSECONDS}]
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    if isinstance(pattern := made.get("pattern"), str):
        made["pattern"] = _SAME.get(pattern, pattern)
    for key in _COUNTS & made.keys():
        if isinstance(made[key], float) and made[key].is_integer():
            made[key] = int(made[key])
    return made


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
    made: dict[str, Any] = _rebuilt(schema, _usual)
    if (found := _referred(made, made.get("$ref"))) is not None:
        made = {**{key: value for key, value in made.items() if key != "$ref"}, **found}
    if not _merges(made):
        made = _rebuilt(made, _closed)
    made = dict(made, type="object")
    why, left_out = _read(_written(made, lenient=True))
    if why or left_out:
        with suppress(InputError):
            dropped: list[str] = []
            other = _otherwise(made, dropped)
            # families that write arguments one by one need them at the root
            if other.get("properties", {}).keys() == made.get("properties", {}).keys():
                made = dict(other, type="object")
                why, also = _read(_written(made, lenient=True))
                left_out = dropped + also
    if why:
        made = _loosened(made)
        _, left_out = _read(_written(made, lenient=True))
    for keyword in left_out:
        log.info("left out of a tool's schema: %s", keyword)
    return made


def part_of(whole: Mapping[str, Any], part: Any) -> dict[str, Any]:
    """Return an argument's schema by itself, with the definitions that it may refer to."""
    found = part if isinstance(part, dict) else {}
    if (behind := _referred(whole, found.get("$ref"))) is not None:
        found = {**behind, **{key: value for key, value in found.items() if key != "$ref"}}
    made = {**found, **{key: whole[key] for key in DEFINED if key in whole}}
    return made if _holds(made) else {}


def _holds(schema: Mapping[str, Any]) -> bool:
    return not _problem(schema, lenient=True)


def _referred(whole: Mapping[str, Any], ref: Any) -> dict[str, Any] | None:
    """What a reference points to; None if that is elsewhere, or nothing."""
    found = pointed(whole, ref[1:]) if isinstance(ref, str) and ref[:1] == "#" else None
    return dict(found) if isinstance(found, Mapping) else None


def _usual(schema: dict[str, Any]) -> dict[str, Any]:
    """Write a schema as the standard has it: types in capitals and `nullable` are OpenAPI's."""
    made = {key: value for key, value in _plain(schema).items() if key != "$id"}
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


def _merges(schema: Any) -> bool:
    """Whether a part is joined with others of its place: closing one would shut out the others' properties."""
    found = []

    def look(part: dict[str, Any]) -> dict[str, Any]:
        joined = part.keys() & {"allOf", "$ref", "anyOf", "oneOf"}
        sole = not part.get("properties") and len(joined) == 1 and len(part.get("allOf", [0])) == 1
        found.append(bool(joined and not sole) or bool(part.keys() & _CONDITIONS))
        return part

    _rebuilt(schema, look)
    return any(found)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow no other properties beside those that are listed: a tool would not know what to do with them."""
    if not isinstance(schema.get("properties"), dict) or "patternProperties" in schema:
        return schema
    return {"additionalProperties": False, **schema}


def _loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the keywords that cannot be held; any object if it cannot be held even so.

    Each part is tried by itself, so there must not be too many.
    """
    if json.dumps(schema).count("{") > _MAX_PARTS:
        return ANY_OBJECT
    made = _rebuilt(schema, lambda part: _holding(part, schema))
    return made if _holds(made) else ANY_OBJECT


def _holding(part: dict[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Keep those keywords of a part, whose own parts can be held, that can be held each by itself."""
    made = dict(part)
    if "$ref" in part and _referred(whole, part["$ref"]) is None:
        del made["$ref"]
    alone = _rebuilt(made, _unreferring)
    if _holds(alone):
        return made
    left = {
        key: value for key, value in made.items() if key not in alone or _holds({key: alone[key]})
    }
    log.info("left out of a tool's schema: %s", sorted(part.keys() - left.keys()))
    return left


def _unreferring(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a part that is tried by itself cannot have."""
    return {key: value for key, value in schema.items() if key not in _OUTSIDE}
