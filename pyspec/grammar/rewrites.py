"""JSON schemas without the keywords that llguidance lacks: the same instances are valid, or there is an InputError.

Most rules need the opposite of a schema. What no part has evaluated (`unevaluatedProperties`, `unevaluatedItems`) is told apart
by the ways in which a schema may be satisfied, each with the properties and items that it evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations, product
from math import inf
from typing import Any

from pyspec.errors import InputError
from pyspec.grammar import keywords
from pyspec.grammar.keywords import NO_LIST, NOTES, Schema, all_of, any_of, at, few, longest
from pyspec.grammar.references import Document, with_parts

_MAX_STEPS = 4000
_UNEVALUATED = {"unevaluatedProperties", "unevaluatedItems"}
_IN_PLACE = ("allOf", "$ref", "anyOf", "oneOf", "if", "dependentSchemas")
_SILENT = NOTES | {"then", "else", "minContains", "maxContains"}


def rewritten(schema: dict[str, Any], left_out: list[str] | None = None) -> dict[str, Any]:
    """Return a schema that has the same instances. Raises InputError.

    left_out: if given, gets the keywords that have no other form, and the schema has more instances.
    """
    document = Document(schema)
    root = document.flat()
    maker = _Rewriting(document.defs, left_out)
    made = maker.held(root)
    if made is False:
        raise InputError("nothing is valid")
    defs = {name: maker.held(part) for name, part in document.defs.items()}
    kept = {"$schema": schema["$schema"]} if "$schema" in schema and not document.old else {}
    return {**kept, **({} if made is True else made), **({"$defs": defs} if defs else {})}


@dataclass(frozen=True)
class _Way:
    """One way to satisfy a schema: what has to hold, and which names, patterns of names and first items that evaluates.

    every: whether it evaluates all properties. matching: items that are evaluated wherever they are.
    """

    held: tuple[Schema, ...] = ()
    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    every: bool = False
    items: float = 0
    matching: tuple[Schema, ...] = ()

    def __add__(self, other: _Way) -> _Way:
        return _Way(
            self.held + other.held,
            self.names | other.names,
            self.patterns | other.patterns,
            self.every or other.every,
            max(self.items, other.items),
            self.matching + other.matching,
        )

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> _Way:
        """What a schema's own keywords demand and evaluate."""
        return cls(
            (schema,) if schema else (),
            frozenset(schema.get("properties", {})),
            frozenset(schema.get("patternProperties", {})),
            "additionalProperties" in schema,
            inf if "items" in schema else len(schema.get("prefixItems", [])),
            (schema["contains"],) if "contains" in schema else (),
        )

    def closed(self, schema: Mapping[str, Any]) -> _Way:
        """Add what a schema demands of what is not evaluated."""
        way = self
        if "unevaluatedProperties" in schema:
            known = {
                "properties": dict.fromkeys(sorted(way.names), True),
                "patternProperties": dict.fromkeys(sorted(way.patterns), True),
                "additionalProperties": schema["unevaluatedProperties"],
            }
            way += _Way(() if way.every else (known,), every=True)
        if "unevaluatedItems" in schema:
            rest = {"items": any_of([schema["unevaluatedItems"], *way.matching])}
            if 0 < way.items < inf:
                rest["prefixItems"] = [True] * int(way.items)
            way += _Way(() if way.items == inf else (rest,), items=inf)
        return way


class _Rewriting:
    """One schema's rewriting; `defs` has what its references name."""

    def __init__(self, defs: Mapping[str, Schema], left_out: list[str] | None) -> None:
        self._defs, self._inside, self._steps = defs, list[str](), 0
        self._left_out = left_out
        self._rules: dict[str, keywords.Rule] = {
            **keywords.RULES,
            "not": lambda schema: self._opposite(schema["not"]),
            "if": self._if,
            "allOf": _switched,
            "oneOf": self._one_of,
            "contains": self._contains,
        }
        self._opposites: dict[str, keywords.Rule] = {
            **keywords.OPPOSITES,
            "properties": self._not_properties,
            "prefixItems": self._not_first_items,
            "items": self._not_items,
            "contains": self._not_contains,
            "allOf": lambda schema: any_of(map(self._opposite, schema["allOf"])),
            "anyOf": lambda schema: all_of(map(self._opposite, schema["anyOf"])),
            "oneOf": self._not_one_of,
            "$ref": lambda schema: self._behind(schema["$ref"], self._opposite),
            "if": lambda schema: self._opposite(self._if(schema)),
            "dependentRequired": lambda schema: self._opposite(keywords.dependent(schema)),
            "dependentSchemas": lambda schema: self._opposite(keywords.dependents(schema)),
        }

    def held(self, schema: Schema) -> Schema:
        """Return the schema in keywords that can be held."""
        self._step()
        if not isinstance(schema, dict):
            return schema
        if unseen := sorted(schema.keys() & _UNEVALUATED):
            rest = {key: value for key, value in schema.items() if key not in unseen}
            return self.held(self._tried(unseen[0], lambda: self._evaluated(schema), rest))
        forms = {
            key: self._tried(key, partial(self._rules[key], schema), True)
            for key in sorted(self._rules.keys() & schema.keys())
        }
        forms = {key: made for key, made in forms.items() if made is not None}
        if not forms:
            return with_parts(schema, self.held)
        rest = {key: value for key, value in schema.items() if key not in forms}
        return self.held(all_of([rest, *forms.values()]))

    def _tried(self, key: str, write: Callable[[], Schema], otherwise: Schema) -> Schema:
        """What a keyword demands, or what is left without it if it may be left out."""
        try:
            return write()
        except InputError:
            if self._left_out is None or self._steps > _MAX_STEPS:
                raise
            self._left_out.append(key)
            return otherwise

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise InputError("too long")

    def _behind(self, ref: str, use: Callable[[Schema], Any]) -> Any:
        """Use what a reference names in its place."""
        name = ref.rpartition("/")[2]
        if name in self._inside:
            raise InputError("a reference to itself")
        self._inside.append(name)
        try:
            return use(self._defs[name])
        finally:
            self._inside.pop()

    # -- ways ----------------------------------------------------------------------------------------------------------

    def _evaluated(self, schema: Mapping[str, Any]) -> Schema:
        return any_of(all_of(way.held) for way in self._ways(schema))

    def _ways(self, schema: Schema) -> list[_Way]:
        """The ways to satisfy a schema; where one holds as well that evaluates more, fewer are closed by this one."""
        self._step()
        if not isinstance(schema, dict):
            return [_Way()] if schema else []
        left = {"then", "else", *_IN_PLACE, *_UNEVALUATED}
        own = _Way.of({key: value for key, value in schema.items() if key not in left})
        choices = chain.from_iterable(self._within(k, schema) for k in _IN_PLACE if k in schema)
        return [sum(found, own).closed(schema) for found in few(product(*choices))]

    def _within(self, key: str, schema: Mapping[str, Any]) -> Iterator[list[_Way]]:
        """For each part of a keyword, of which all have to be satisfied, the ways to do so."""
        value = schema[key]
        if key == "allOf":
            yield from map(self._ways, value)
        elif key == "$ref":
            yield self._behind(value, self._ways)
        elif key == "anyOf":
            some = (combinations(value, n) for n in range(1, len(value) + 1))
            yield [way for taken in few(chain.from_iterable(some)) for way in self._joint(taken)]
        elif key == "oneOf":
            yield [
                _Way((self._no_other(value, n),)) + way
                for n, part in enumerate(few(value))
                for way in self._ways(part)
            ]
        elif key == "if":
            yield self._if_ways(*(schema.get(key, True) for key in ("if", "then", "else")))
        else:
            for name, part in value.items():
                without = _Way(({"properties": {name: False}},))
                yield [without, *self._joint([keywords.has(name), part])]

    def _joint(self, parts: Sequence[Schema]) -> list[_Way]:
        return [sum(found, _Way()) for found in product(*map(self._ways, parts))]

    def _if_ways(self, condition: Schema, then: Schema, other: Schema) -> list[_Way]:
        # a condition without consequences still evaluates
        wrong = True if then is other is True else self._opposite(condition)
        return [
            *self._joint([condition, then]),
            *(_Way((wrong,)) + way for way in self._ways(other)),
        ]

    # -- opposites -----------------------------------------------------------------------------------------------------

    def _opposite(self, schema: Schema) -> Schema:
        """A schema of what is not valid."""
        self._step()
        if not isinstance(schema, dict):
            return not schema
        if schema.keys() & _UNEVALUATED:
            return self._opposite(self._evaluated(schema))
        if unknown := schema.keys() - self._opposites.keys() - _SILENT:
            raise InputError(min(unknown))
        return any_of(self._opposites[key](schema) for key in schema if key not in _SILENT)

    def _none(self, parts: Iterable[Schema]) -> Schema:
        return all_of(map(self._opposite, parts))

    def _not_properties(self, schema: Mapping[str, Any]) -> Schema:
        wrong = {name: self._opposite(part) for name, part in schema["properties"].items()}
        return any_of(
            {**keywords.has(name), "properties": {name: part}}
            for name, part in wrong.items()
            if part is not False
        )

    def _not_first_items(self, schema: Mapping[str, Any]) -> Schema:
        wrong = enumerate(map(self._opposite, schema["prefixItems"]))
        return any_of({**at(n, part), "type": "array"} for n, part in wrong if part is not False)

    def _not_items(self, schema: Mapping[str, Any]) -> Schema:
        if "prefixItems" in schema:
            raise InputError("items")
        wrong = self._opposite(schema["items"])
        return {"type": "array", "contains": wrong, **keywords.lengths(schema)}

    def _not_contains(self, schema: Mapping[str, Any]) -> Schema:
        least, most = schema.get("minContains", 1), schema.get("maxContains", inf)
        less = [{"minContains": 0, "maxContains": least - 1}] if least > 0 else []
        more = [{"minContains": most + 1}] if most < inf else []
        same = {"type": "array", "contains": schema["contains"], **keywords.lengths(schema)}
        return any_of({**same, **each} for each in (*less, *more))

    def _not_one_of(self, schema: Mapping[str, Any]) -> Schema:
        parts = schema["oneOf"]
        return any_of([self._none(parts), *map(all_of, few(combinations(parts, 2)))])

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _one_of(self, schema: Mapping[str, Any]) -> Schema | None:
        """Exactly one; None where that cannot be written, since llguidance knows some of these."""
        parts = schema["oneOf"]
        try:
            ways = [all_of([part, self._no_other(parts, n)]) for n, part in enumerate(few(parts))]
        except InputError:
            return None
        return any_of(ways)

    def _no_other(self, parts: Sequence[Schema], n: int) -> Schema:
        """What is not one of the parts but the n-th."""
        return self._none(
            part for m, part in enumerate(parts) if m != n and not self._apart(parts[n], part)
        )

    def _apart(self, a: Schema, b: Schema) -> bool:
        """Whether it is plain to see that nothing satisfies both: by their types, their values, or those of one property."""
        self._step()
        a, b = self._named(a), self._named(b)
        if keywords.are_apart(a, b):
            return True
        shared = {*a.get("required", ())} & {*b.get("required", ())}
        objects = "object" in (a.get("type"), b.get("type"))
        found = ((each.get("properties", {}).get(name, True) for each in (a, b)) for name in shared)
        return objects and any(self._apart(*pair) for pair in found)

    def _named(self, schema: Schema) -> dict[str, Any]:
        """The schema that a sole reference names, or the schema itself."""
        if isinstance(schema, dict) and schema.keys() - NOTES == {"$ref"}:
            schema = self._defs[schema["$ref"].rpartition("/")[2]]
        return schema if isinstance(schema, dict) else {}

    def _if(self, schema: Mapping[str, Any]) -> Schema:
        condition, then, other = (schema.get(key, True) for key in ("if", "then", "else"))
        if then is other is True:
            return True
        return any_of([all_of([condition, then]), all_of([self._opposite(condition), other])])

    def _contains(self, schema: Mapping[str, Any]) -> Schema:
        """A number of such items, in a list of bounded length unless all or none are."""
        part, wrong = schema["contains"], self._opposite(schema["contains"])
        least, most = schema.get("minContains", 1), schema.get("maxContains", inf)
        if wrong is False:
            upper = {} if most == inf else {"maxItems": int(most)}
            return {"minItems": int(least), **upper}
        if least > most or (part is False and least):
            return NO_LIST
        made = list[Schema]()
        if least:
            places = few(combinations(range(longest(schema)), int(least)))
            made.append(any_of(all_of(at(n, part) for n in taken) for taken in places))
        if most == 0:
            made.append({"items": wrong})
        elif most < inf and (length := longest(schema)) > most:
            places = few(combinations(range(length), int(most)))
            firsts = ([True if n in taken else wrong for n in range(length)] for taken in places)
            made.append(any_of({"prefixItems": first} for first in firsts))
        return any_of([NO_LIST, all_of(made)])


def _switched(schema: Mapping[str, Any]) -> Schema | None:
    """Conditions on one property's value, as alternatives: by themselves each would double the ways of the others."""
    cases = {n: each for n, part in enumerate(schema["allOf"]) if (each := _case(part))}
    names = {name for name, _ in cases.values()}
    values = [value for _, value in cases.values()]
    if len(cases) < 2 or len(names) > 1 or len(set(values)) < len(values):
        return None
    held = [part for n, part in enumerate(schema["allOf"]) if n not in cases]
    found = [schema["allOf"][n] for n in cases]
    ways = [all_of([part["if"], part["then"]]) for part in found]
    ways.append({"properties": {names.pop(): keywords.other_values(values)}})
    objects = all_of([{"type": "object"}, any_of(ways)])
    # all conditions are true of other values
    others = all_of([keywords.NO_OBJECT, *(part["then"] for part in found)])
    return all_of([*held, any_of([objects, others])])


def _case(part: Schema) -> tuple[str, str] | None:
    """The property and its text that a part is a condition on."""
    if not isinstance(part, dict) or part.keys() != {"if", "then"}:
        return None
    match part["if"]:
        case {"properties": dict(found), "required": [name], **more} if found.keys() == {name}:
            held = found[name] if isinstance(found[name], dict) and not more else {}
            value = held.get("const") if held.keys() <= {"const", "type"} else None
            if isinstance(value, str) and held.get("type", "string") == "string":
                return name, value
    return None
