"""Objects without other properties than a schema lists, unless it says that there may be more.

OpenAI's strict mode demands `additionalProperties: false`, and llama.cpp takes it for granted: small models invent properties
until an answer's limit otherwise. Parts that are joined at one place of the answer, by `allOf` or a reference beside other
keywords, are closed around all that they list together: closing each by itself would shut out what the others list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspec.errors import InputError
from pyspec.grammar.parts import pointed, with_parts

_JOINED = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas")
"""Keywords whose schemas are of the same place as their own; so is `$ref`."""
_LISTS = ("properties", "patternProperties")
_CONDITIONS = {*_LISTS, "additionalProperties", "if", "then", "else", "dependentSchemas"}
_MAX_STEPS = 100_000


@dataclass(frozen=True)
class _Place:
    """What all parts of one place list together."""

    names: tuple[str, ...] = ()
    """Of properties, in order."""
    patterns: tuple[str, ...] = ()
    """Of properties' names."""
    lists: bool = False
    """Whether any part lists properties."""
    free: bool = False
    """Whether any part allows others."""

    def __or__(self, other: _Place) -> _Place:
        return _Place(
            tuple(dict.fromkeys(self.names + other.names)),
            tuple(dict.fromkeys(self.patterns + other.patterns)),
            self.lists or other.lists,
            self.free or other.free,
        )


_NOTHING = _Place()


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

    def _closed(self, part: Any, outer: _Place = _NOTHING) -> Any:
        """Close a part. outer: what the parts that it is joined with list at the same place."""
        if not isinstance(part, dict):
            return part
        if "$id" in part and part is not self._whole:
            return closed(part)  # its references begin there
        if outer == _NOTHING and _is_alone(part):
            return with_parts(part, self._closed)
        ways = next((key for key in ("anyOf", "oneOf") if isinstance(part.get(key), list)), "")
        listed = outer | self._listed({key: part[key] for key in part if key != ways})
        made = self._open(part)
        if ways:
            made[ways] = [self._closed(way, listed) for way in part[ways]]
        elif listed.lists and not listed.free:
            made = self._with_end(made, listed)
        return made

    def _with_end(self, made: dict[str, Any], listed: _Place) -> dict[str, Any]:
        """Forbid all properties but the listed ones, in a part that is still open."""
        self._step(len(listed.names))
        names, patterns = (dict.fromkeys(found, True) for found in (listed.names, listed.patterns))
        own = made if made.keys().isdisjoint(("$ref", "allOf")) else {}
        end: dict[str, Any] = {
            "properties": {**own.get("properties", {}), **_missing(names, own.get("properties"))},
            "additionalProperties": False,
        }
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
        self._listed({"$ref": ref})  # whose steps count for each: llguidance joins each anew
        if ref not in self._names:
            self._names[ref] = f"pyspec-open-{len(self._names)}"
            self._due.append((self._names[ref], pointed(self._whole, ref)))
        return self._names[ref]

    def _listed(self, part: Any) -> _Place:
        """What a part and all that is joined with it list."""
        found, due, seen = list[_Place](), [part], set[str]()
        while due:
            self._step()
            each = due.pop()
            if not isinstance(each, dict):
                continue
            found.append(_own(each))
            due += reversed([*_joined(each)])
            if isinstance(ref := each.get("$ref"), str) and ref not in seen:
                seen.add(ref)
                due.append(pointed(self._whole, ref))
        made = _NOTHING
        for each in found:
            self._step(len(each.names))
            made |= each
        return made

    def _step(self, n: int = 1) -> None:
        self._steps += n
        if self._steps > _MAX_STEPS:
            raise InputError("the JSON schema joins too many parts", "make it simpler")


def _own(part: Mapping[str, Any]) -> _Place:
    lists = [part.get(key) for key in _LISTS]
    names, patterns = (tuple(found) if isinstance(found, dict) else () for found in lists)
    required = part.get("required")
    if isinstance(required, list):
        names += tuple(name for name in required if isinstance(name, str))
    free = part.get("additionalProperties", False) is not False
    return _Place(names, patterns, any(isinstance(found, dict) for found in lists), free)


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


def _missing(names: Mapping[str, Any], known: Any) -> dict[str, Any]:
    return {name: True for name in names if name not in (known or ())}
