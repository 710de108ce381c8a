"""A schema that is written without some keywords has the same instances, by another program's reading of both."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyspec.errors import InputError
from pyspec.grammar.keywords import other_values
from pyspec.grammar.rewrites import rewritten
from pyspec.grammar.schemas import _SAME

GONE = {
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas",
    "propertyNames", "uniqueItems", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$anchor", "$id",
}  # fmt: skip
NAMES = st.sampled_from(["a", "b", "ab"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from([0.5, "", "a", "b", "ab", "ba"])
)
INSTANCES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
COUNTS = st.integers(0, 3)
SCALARS = {
    "type": st.sampled_from(["null", "boolean", "object", "array", "number", "string", ["string", "array"], ["object", "null"]]),
    "const": LEAVES,
    "enum": st.lists(LEAVES, min_size=1, max_size=3),
    "minimum": st.integers(-2, 3),
    "exclusiveMaximum": st.integers(-2, 3),
    "minLength": COUNTS,
    "maxLength": COUNTS,
    "minItems": COUNTS,
    "maxItems": COUNTS,
    "required": st.lists(NAMES, unique=True, max_size=2),
    "minProperties": COUNTS,
    "maxProperties": COUNTS,
    "uniqueItems": st.booleans(),
    "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
    "propertyNames": st.sampled_from([True, False, {"enum": ["a"]}, {"minLength": 2}, {"pattern": "^a"}, {"type": "string"}]),
}  # fmt: skip


def when(value: str) -> dict[str, Any]:
    return {"properties": {"a": {"const": value}}, "required": ["a"]}


def tagged(value: str) -> dict[str, Any]:
    """A closed object that one property tells apart."""
    return {"type": "object", **when(value), "additionalProperties": False}


def schemas(inner: Any) -> Any:
    """Schemas that hold others: one keyword or two, beside a bound of lists."""
    several = st.lists(inner, min_size=1, max_size=2)
    kinds = {
        **SCALARS,
        **dict.fromkeys(["allOf", "anyOf", "oneOf", "prefixItems"], several),
        **dict.fromkeys(["not", "items", "additionalProperties"], inner),
        **dict.fromkeys(
            ["properties", "dependentSchemas"], st.dictionaries(NAMES, inner, max_size=2)
        ),
        **dict.fromkeys(["unevaluatedProperties", "unevaluatedItems"], st.just(False) | inner),
        "$ref": st.just("#/$defs/x"),
        "patternProperties": st.dictionaries(st.just("^a"), inner),
    }
    tested = st.fixed_dictionaries({"if": inner}, optional={"then": inner, "else": inner})
    contained = st.fixed_dictionaries(
        {"contains": inner, "maxItems": COUNTS},
        optional={"minContains": COUNTS, "maxContains": COUNTS},
    )
    one = st.sampled_from(sorted(kinds)).flatmap(
        lambda key: st.fixed_dictionaries({key: kinds[key]})
    )
    case = st.fixed_dictionaries({"if": st.sampled_from(["a", "b"]).map(when), "then": inner})
    switch = st.fixed_dictionaries({"allOf": st.lists(case | inner, min_size=2, max_size=3)})
    either = st.lists(inner | st.sampled_from(["a", "b"]).map(tagged), min_size=2, max_size=3)
    kinds["oneOf"] = either
    parts = st.lists(one | one | tested | contained | switch, min_size=1, max_size=3)
    return parts.map(lambda found: {key: value for part in found for key, value in part.items()})


SIMPLE = st.sampled_from(sorted(SCALARS)).flatmap(
    lambda key: st.fixed_dictionaries({key: SCALARS[key]})
)
SCHEMAS = st.recursive(st.booleans() | SIMPLE, schemas, max_leaves=4)


def keywords_of(schema: Any) -> set[str]:
    """All names in a schema; those of properties are others."""
    if isinstance(schema, list):
        return set[str]().union(*map(keywords_of, schema))
    if not isinstance(schema, dict):
        return set()
    return {*schema}.union(*map(keywords_of, schema.values()))


@settings(max_examples=100)
@given(
    schema=schemas(SCHEMAS), behind=SIMPLE, instances=st.lists(INSTANCES, min_size=5, max_size=12)
)
def test_the_same_instances_are_valid(schema: Any, behind: Any, instances: list[Any]) -> None:
    schema = {**schema, "$defs": {"x": behind}}
    try:
        made = rewritten(schema)
    except InputError as error:
        if "nothing" in str(error):
            made = {"not": {}}
        else:
            assume(False)
    before, after = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(made)
    assert [x for x in instances if before.is_valid(x) != after.is_valid(x)] == []
    left = keywords_of(made) & GONE
    assert not left or made == {"not": {}}


@given(
    values=st.lists(st.sampled_from(["", "a", "b", "ab", "aba", "-", "😀", "a\n"]), min_size=1),
    text=st.text("ab-\n😀", max_size=4),
)
def test_all_texts_but_some(values: list[str], text: str) -> None:
    """By one regular expression that does not look ahead."""
    (pattern,) = (way["pattern"] for way in other_values(values)["anyOf"] if "pattern" in way)
    assert bool(re.fullmatch(pattern[1:-1], text)) == (text not in values)


@pytest.mark.parametrize(("pattern", "same"), _SAME.items())
def test_a_pattern_is_the_same_without_looking_ahead(pattern: str, same: str) -> None:
    """For every text of up to five characters of the alphabet."""
    for length in range(6):
        for text in map("".join, product("+-.01", repeat=length)):
            assert bool(re.search(pattern, text)) == bool(re.search(same, text)), text


LIST = {
    "$id": "https://e.invalid/list",
    "type": "array",
    "items": {"$dynamicRef": "#item"},
    "$defs": {"d": {"$dynamicAnchor": "item"}},
}
ROOT = {"$id": "https://e.invalid/r", "$dynamicAnchor": "item", "type": ["array", "null"]}
REFERRED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "an anchor": ({"items": {"$ref": "#x"}, "$defs": {"d": {"$anchor": "x", "not": {"const": 1}}}}, [2], [1]),
    "an identity": (
        {"$id": "https://e.invalid/a", "not": {"$ref": "b"}, "$defs": {"d": {"$id": "b", "const": 1}}}, 2, 1),
    "a name in an identity": (
        {"items": {"$ref": "urn:x#/$defs/y"}, "$defs": {"d": {"$id": "urn:x", "$defs": {"y": {"not": {"const": 1}}}}}}, [2], [1]),
    "an anchor of draft 7": (
        {"items": {"$ref": "#x"}, "definitions": {"d": {"$id": "#x", "not": {"const": 1}}, "e": {"$id": "#/definitions/e"}}},
        [2], [1]),
    "itself": ({"not": {"const": 1}, "items": {"$ref": "#"}}, [[2]], [[1]]),
    "the root, dynamically": ({**ROOT, "$ref": "list", "$defs": {"l": LIST}}, [[]], [1]),
    "an escaped name": ({"not": {"$ref": "#/$defs/a~1b%25"}, "$defs": {"a/b%": {"const": 1}}}, 2, 1),
    "draft 7's dependencies": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"], "b": {"not": {"required": ["c"]}}}},
        {"a": 1, "b": 1}, {"b": 1, "c": 1}),
    "draft 7's lists": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"not": {"const": 1}}], "additionalItems": {"const": 3}},
        [2, 3], [2, 4]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERRED)
def test_references_lead_to_the_same(name: str) -> None:
    schema, right, wrong = REFERRED[name]
    made = rewritten(schema)
    reader = jsonschema.Draft202012Validator(made)
    assert reader.is_valid(right)
    assert not reader.is_valid(wrong)


UNWRITABLE: dict[str, dict[str, Any]] = {
    "a reference to elsewhere": {"$ref": "https://e.invalid/x"},
    "a reference to nothing": {"$ref": "#/$defs/x"},
    "an opposite of itself": {"$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}, "not": {"$ref": "#/$defs/x"}},
    "scopes that differ": {
        "$id": "https://e.invalid/r", "$ref": "list",
        "$defs": {"l": LIST, "o": {"$id": "other", "$defs": {"d": {"$dynamicAnchor": "item"}}}},
    },
    "numbers that are no integers": {"not": {"type": "integer"}},
    "what no pattern matches": {"not": {"pattern": "a"}},
    "lists of any length": {"contains": {"const": 1}},
    "different texts": {"type": "array", "uniqueItems": True},
    "thousands of ways": {"oneOf": [{"anyOf": [{"required": [f"{n}{m}"]} for n in range(70)]} for m in range(70)]},
    "no form of values": {"not": {"const": {"a": 1}}},
}  # fmt: skip


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_has_no_other_form_is_said(name: str) -> None:
    with pytest.raises(InputError):
        rewritten(UNWRITABLE[name])
