"""Objects have no properties that their schema does not list, unless it allows more or several parts describe them together."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from grammar.conftest import Takes

from pyspec.grammar.languages import Language
from pyspec.grammar.schemas import json_expression, of_schema, tool_schema

INT = {"type": "integer"}
A, B = ({"type": "object", "properties": {name: INT}} for name in "ab")
N = {"$ref": "#/$defs/n"}
REF = {"$ref": "#/$defs/a", "description": "x"}
MORE = ['{"a":1,"z":1}']
CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "a list": (A, ['{"a":1}', "{}"], MORE),
    "an object within": ({"properties": {"in": A}}, ['{"in":{"a":1}}'], ['{"in":{"z":1}}']),
    "items": ({"type": "array", "items": A}, ['[{"a":1}]'], ['[{"z":1}]']),
    "a reference": (REF, ['{"a":1}'], MORE),
    "a reference to itself": (
        {"$defs": {"n": {"properties": {"in": N}}}, **N}, ['{"in":{"in":{}}}'], ['{"in":{"z":1}}']),
    "a part of its own": ({"allOf": [REF]}, ['{"a":1}'], MORE),
    "either": ({"anyOf": [{"type": "null"}, REF]}, ['{"a":1}', "null"], MORE),
    "one of two": ({"oneOf": [A, B]}, ['{"a":1}', '{"b":1}'], ['{"z":1}', '{"a":1,"b":1}']),
    "which of its own are needed": ({**A, "anyOf": [{"required": ["a"]}]}, ['{"a":1}'], ["{}", *MORE]),
    "a list of none": ({"type": "object", "properties": {}}, ["{}"], ['{"z":1}']),
    "patterns": ({"type": "object", "patternProperties": {"^x": INT}}, ['{"x1":1}'], ['{"x":"a"}', '{"z":1}']),
    "a required name": ({**A, "required": ["a", "b"]}, ['{"a":1,"b":[]}'], ['{"a":1}', '{"a":1,"b":1,"c":1}']),
    # open
    "true": ({**A, "additionalProperties": True}, ['{"z":[]}'], []),
    "a schema": ({**A, "additionalProperties": INT}, ['{"z":1}'], ['{"z":[]}']),
    "an object without a list": ({"type": "object"}, ['{"z":1}'], ["1"]),
    "two parts": ({"allOf": [A, B]}, ['{"a":1,"b":1}'], ['{"a":"x"}']),
    "a list and a reference": ({**B, "allOf": [{"$ref": "#/$defs/a"}]}, ['{"b":1,"a":1}'], ['{"a":"x"}']),
    "parts of parts": ({"allOf": [{"allOf": [REF, B]}, {"properties": {"c": INT}}]}, ['{"a":1,"b":1,"c":1}'], ['{"c":"x"}']),
    "a list and ways": ({**A, "anyOf": [{"required": ["a"]}, B]}, ['{"a":1}', '{"b":1}'], ['{"a":"x"}']),
    "closed within two parts": ({"allOf": [A, {"properties": {"in": B}}]}, ['{"a":1,"in":{"b":1}}'], ['{"in":{"z":1}}']),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_object_is_closed_unless_others_describe_it_too(name: str, takes: Takes) -> None:
    schema, right, wrong = CASES[name]
    inside = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    inside["$defs"] = {"a": A, **schema.get("$defs", {})}
    before = deepcopy(inside)
    for language in (of_schema(inside), Language(json_expression(tool_schema(inside)))):
        for text in (*right, *wrong):
            assert takes(language, f'{{"v":{text}}}') == (text in right), text
        assert not takes(language, f'{{"v":{right[0]},"w":1}}')
    assert inside == before
