"""Objects have no properties that their schema does not list, wherever and however it lists them."""

from copy import deepcopy
from typing import Any

import pytest

from pyspec.errors import InputError
from pyspec.grammar.schemas import closed, of_schema

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
    "one of two ways": (
        {**A, "anyOf": [{"required": ["a"]}, B]}, ['{"a":1}', '{"a":1,"b":1}', '{"b":1}'],
        ['{"z":1}', '{"a":1,"z":1}', '{"a":"x"}']),
    "a way within a way": ({**A, "anyOf": [{"anyOf": [B]}]}, ['{"a":1,"b":1}'], ['{"a":1,"z":1}']),
    "a definition by itself, and one that is joined": (
        {"$defs": {"a": A, "b": B}, "properties": {"v": {"$ref": "#/$defs/a"}, "w": {**A, "$ref": "#/$defs/b"}}},
        ['{"v":{"a":1},"w":{"a":1,"b":1}}'], ['{"v":{"z":1}}', '{"w":{"z":1}}']),
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
    before = deepcopy(schema)
    for text in (*right, *wrong):
        assert takes(of_schema(schema), text) == (text in right), text
    assert schema == before


def test_a_schema_that_joins_thousands_of_parts_is_refused():
    part = {"allOf": [A, {"properties": {f"n{n}": True for n in range(1000)}}]}
    with pytest.raises(InputError, match="joins too many parts"):
        closed({"$defs": {"x": part}, "prefixItems": [{**A, "$ref": "#/$defs/x"}] * 500})
