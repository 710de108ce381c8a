"""Objects have no properties that their schema does not list, wherever and however it lists them."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.errors import InputError
from pyspec.grammar.languages import Language
from pyspec.grammar.schemas import closed, json_expression, of_schema, tool_schema

Made = tuple[Any, Any, dict[str, Any]]
"""A schema, an instance with all that it lists, and definitions that it refers to."""
INT: Made = ({"type": "integer"}, 1, {})


def leaf(free):
    value = {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}
    return (value, {"free": 1}, {}) if free else INT


def an_object(parts, form, n):
    """An object of these parts, which are named by their order. form: how the schema says it."""
    named = {f"p{i}": part for i, part in enumerate(parts)}
    defs = {name: part for each in parts for name, part in each[2].items()}
    value = {name: part[1] for name, part in named.items()}
    kinds = {name: part[0] for name, part in named.items()}
    head = dict(list(kinds.items())[:1])
    rest = {name: kind for name, kind in kinds.items() if name not in head}
    plain, more = ({"type": "object", "properties": p, "required": [*p]} for p in (head, rest))
    whole = {"type": "object", "properties": kinds, "required": [*kinds]}
    name = f"d{n}"
    forms: dict[str, tuple[Any, dict[str, Any]]] = {
        "plain": (whole, {}),
        "ref": ({"$ref": f"#/$defs/{name}", "description": "x"}, {name: whole}),
        "allOf": ({"allOf": [plain, more]}, {}),
        "refs": ({"allOf": [plain, {"$ref": f"#/$defs/{name}"}]}, {name: more}),
        "beside": ({**plain, "allOf": [{"$ref": f"#/$defs/{name}"}]}, {name: more}),
        "either": ({"anyOf": [{"type": "null"}, whole]}, {}),
        "ways": ({**plain, "anyOf": [{"required": ["none"]}, more]}, {}),
        "one": ({"oneOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}, {name: whole}),
        "list": ({"type": "array", "items": whole}, {}),
    }  # fmt: skip
    schema, own = forms[form]
    return schema, [value] if form == "list" else value, {**defs, **own}


FORMS = ["plain", "ref", "allOf", "refs", "beside", "either", "ways", "one", "list"]


@st.composite
def made_of(draw):
    count = 0

    def draw_part(depth):
        nonlocal count
        if depth == 0:
            return leaf(draw(st.booleans()))
        parts = [draw_part(draw(st.integers(0, depth - 1))) for _ in range(draw(st.integers(1, 3)))]
        count += 1
        return an_object(parts, draw(st.sampled_from(FORMS)), count)

    return draw_part(3)


def with_another(value):
    """The value with one property more in one of its closed objects, each in turn."""
    for at, each in enumerate(value) if isinstance(value, list) else ():
        for other in with_another(each):
            yield [*value[:at], other, *value[at + 1 :]]
    if isinstance(value, dict) and "free" not in value:
        yield {**value, "other": 1}
        for name, each in value.items():
            for other in with_another(each):
                yield {**value, name: other}


@settings(max_examples=60)
@given(made=made_of())
def test_no_other_property_can_be_answered(made, takes):
    schema, value, defs = made
    inside = {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": defs}
    before = deepcopy(inside)
    for language in (of_schema(inside), Language(json_expression(tool_schema(inside)))):
        assert takes(language, json.dumps({"v": value}, separators=(",", ":")))
        for other in with_another({"v": value}):
            assert not takes(language, json.dumps(other, separators=(",", ":"))), other
    assert inside == before


A, B = ({"type": "object", "properties": {name: {"type": "integer"}}} for name in "ab")
OPEN: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "true": ({**A, "additionalProperties": True}, ['{"z":[]}'], []),
    "a schema": ({**A, "additionalProperties": {"type": "integer"}}, ['{"z":1}'], ['{"z":[]}']),
    "one part of two": ({"allOf": [A, {**B, "additionalProperties": True}]}, ['{"z":1}'], ['{"a":[]}']),
    "an object without a list": ({"type": "object"}, ['{"z":1}'], ["1"]),
    "a list of none": ({"type": "object", "properties": {}}, ["{}"], ['{"z":1}']),
    "patterns": ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, ['{"x1":1}'], ['{"x":"a"}', '{"z":1}']),
    "a required name": ({**A, "required": ["a", "b"]}, ['{"a":1,"b":[]}'], ['{"a":1}', '{"a":1,"b":1,"c":1}']),
    "closed, with a required name": (
        {"anyOf": [{**A, "required": ["z"], "additionalProperties": False}, B]}, ['{"b":1}'], ['{"z":1}']),
    "closed in one way": ({"properties": {"z": True}, "anyOf": [{**A, "additionalProperties": False}]}, ['{"a":1}'], ['{"z":1}']),
    "one of two ways": ({**A, "anyOf": [{"required": ["a"]}, B]}, ['{"a":1}', '{"b":1}'], ['{"z":1}', '{"a":"x"}']),
    "itself, joined": (
        {"$defs": {"n": {**A, "allOf": [{"properties": {"in": {"$ref": "#/$defs/n"}}}]}}, "$ref": "#/$defs/n"},
        ['{"a":1,"in":{"a":2}}'], ['{"in":{"z":2}}', '{"z":1}']),
    "draft 7": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"b": B},
         "allOf": [A, {"$ref": "#/definitions/b"}]}, ['{"a":1,"b":1}'], ['{"z":1}']),
    "an identity of its own": (
        {"properties": {"v": {"$id": "urn:v", "$defs": {"b": B}, "allOf": [A, {"$ref": "#/$defs/b"}]}}},
        ['{"v":{"a":1,"b":1}}'], ['{"v":{"z":1}}']),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_a_schema_says_what_is_open(name, takes):
    schema, right, wrong = OPEN[name]
    for text in (*right, *wrong):
        assert takes(of_schema(schema), text) == (text in right), text


def test_a_schema_that_joins_thousands_of_parts_is_refused():
    part = {"allOf": [A, {"properties": {f"n{n}": True for n in range(1000)}}]}
    with pytest.raises(InputError, match="joins too many parts"):
        closed({"$defs": {"x": part}, "prefixItems": [{**A, "$ref": "#/$defs/x"}] * 500})
