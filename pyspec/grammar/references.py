"""References of a JSON schema: each points into `$defs` of the root afterwards, and no part has an identity of its own.

What older drafts say otherwise is said as in draft 2020-12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from pyspec.errors import InputError

ONE = {
    "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "additionalItems",
}  # fmt: skip
MANY = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
NAMED = {
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
}  # fmt: skip
DEFINED = ("$defs", "definitions")
_IDENTITY = {"$id", "$anchor", "$dynamicAnchor", "$ref", "$dynamicRef", "$schema", *DEFINED}
_OLD = ("draft-03", "draft-04", "draft-06", "draft-07")


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


def pointed(whole: Any, fragment: str) -> Any:
    """What a JSON pointer leads to; None if that is nothing."""
    found = whole
    for step in filter(None, unquote(fragment).split("/")):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


class Document:
    """A schema with what its parts are called. Raises InputError for a reference to what is not in it.

    old: whether it is of a draft before 2019-09. defs: what is referred to.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root, self.old = root, any(old in str(root.get("$schema")) for old in _OLD)
        self._bases: dict[int, str] = {}
        self._known: dict[str, Any] = {"": root}
        self._dynamic: set[str] = set()
        self._names: dict[int, str] = {}
        self.defs: dict[str, Any] = {}
        self._learn(root, "")

    def flat(self) -> Any:
        """Return the root; what is referred to is in `defs`, by names such as `0`."""
        return self._flat(self._root)

    def _learn(self, schema: Any, base: str) -> None:
        if not isinstance(schema, dict):
            return
        name, anchor = urldefrag(str(schema.get("$id", "")))  # older drafts have anchors there
        if name:
            base = urljoin(base, name)
            self._known[base] = schema
        self._bases[id(schema)] = base
        for each in (anchor, schema.get("$anchor"), schema.get("$dynamicAnchor")):
            if each and not str(each).startswith("/"):
                self._known[f"{base}#{each}"] = schema
        if "$dynamicAnchor" in schema:
            self._dynamic.add(f"{base}#{schema['$dynamicAnchor']}")
        with_parts(schema, lambda part: self._learn(part, base))

    def _find(self, ref: str, base: str) -> tuple[str, Any]:
        """Return a reference as an address, and what it refers to."""
        address = base + ref if ref.startswith("#") else urljoin(base, ref)
        resource, fragment = urldefrag(address)
        if fragment and not fragment.startswith("/"):
            found = self._known.get(address)
        else:
            found = pointed(self._known.get(resource), fragment)
        if not isinstance(found, (dict, bool)):
            raise InputError(ref)
        if isinstance(found, dict) and id(found) not in self._bases:
            self._learn(found, resource)
        return address, found

    def _find_dynamic(self, ref: str, base: str) -> Any:
        """What a dynamic reference refers to, if that is the same from everywhere."""
        address, found = self._find(ref, base)
        anchor = address.partition("#")[2]
        outer = f"{self._bases[id(self._root)]}#{anchor}"
        same = {each for each in self._dynamic if each.partition("#")[2] == anchor}
        if address not in self._dynamic or same == {address}:
            return found
        if outer in self._dynamic:
            return self._known[outer]
        raise InputError(ref)

    def _flat(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        referred = list(self._referred(schema))
        if False in referred:
            return False
        made = {key: value for key, value in schema.items() if key not in _IDENTITY}
        made = with_parts(made, self._flat)
        if self.old and isinstance(needs := made.pop("dependencies", None), dict):
            for key, kind in (("dependentRequired", list), ("dependentSchemas", (dict, bool))):
                made[key] = {name: need for name, need in needs.items() if isinstance(need, kind)}
        if isinstance(made.get("items"), list):
            made["prefixItems"] = made.pop("items")
            made |= {"items": made.pop("additionalItems")} if "additionalItems" in made else {}
        found = [each for each in referred if each is not True]
        if len(found) > 1:
            made["allOf"] = [*made.get("allOf", []), found.pop()]
        return {**made, **found[0]} if found else made

    def _referred(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        base = self._bases[id(schema)]
        if "$ref" in schema:
            yield self._named(self._find(str(schema["$ref"]), base)[1])
        if "$dynamicRef" in schema:
            yield self._named(self._find_dynamic(str(schema["$dynamicRef"]), base))

    def _named(self, part: Any) -> Any:
        """A reference to a part by its new name; a boolean for one of these."""
        if isinstance(part, bool):
            return part
        name = self._names.get(id(part))
        if name is None:
            name = self._names[id(part)] = str(len(self._names))
            self.defs[name] = self._flat(part)
        return {"$ref": f"#/$defs/{name}"}
