"""JSON schemas: an answer may be whatever is valid, and nothing else; of a tool's schema there is always a language."""

import json
import re
from itertools import product
from typing import Any

import pytest

from pyspec.errors import InputError
from pyspec.grammar import schemas
from pyspec.grammar.languages import Constraint, Language
from pyspec.grammar.masks import check_constraint
from pyspec.grammar.schemas import (
    ANY_OBJECT,
    NO_ARGUMENTS,
    json_expression,
    of_schema,
    part_of,
    tool_schema,
)


def of(*required, **properties):
    return {"type": "object", "properties": properties, "required": [*required]}


INT, TEXT = {"type": "integer"}, {"type": "string"}
A = of(a=INT)
NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "required": ["next"],
}
ANY = ["1", '"a"', "[]", '{"a":[null]}', "null", "true"]

HELD: dict[str, tuple[Any, list[str], list[str]]] = {
    # what is invalid JSON
    "a text": ({"type": "string"}, ['"a"', '"\\n"', '"é😀"'], ['"\n"', '"\t"', '"a', "a"]),
    "a pattern of any character": ({"type": "string", "pattern": "^.{1,9}$"}, ['"a"', '"\\""'], ['"""', '"1234567890"', '""']),
    "a pattern of all but one": ({"type": "string", "pattern": "^[^,]+$"}, ['"a"', '"\\""'], ['"""', '","']),
    "a pattern of two": ({"type": "string", "pattern": "^yes|no$"}, ['"yes"', '"yes!"', '"oh no"'], ['"yes', '"y"']),
    # what is not constrained
    "null among values": ({"type": ["string", "null"], "enum": ["a", None]}, ['"a"', "null"], ['"Tom"', '"null"']),
    "an object or null": ({**A, "type": ["object", "null"]}, ['{"a":1}', "null"], ['{"a":"x"}']),
    "values behind allOf": ({"allOf": [{"enum": ["red"]}], "description": "d"}, ['"red"'], ["{}", '"blue"']),
    "oneOf beside properties": ({**A, "oneOf": [{"required": ["a"]}]}, ['{"a":1}'], ["{}", '{"a":"x"}']),
    "allOf beside properties": ({**A, "allOf": [{"required": ["a"]}]}, ['{"a":1}'], ["{}", '{"a":"x"}']),
    "a definition named as a property": (
        {"$defs": {"a": {"const": 1}}, "type": "object", "properties": {"a": {"type": "string"}}}, ['{"a":"x"}'], ['{"a":1}']),
    "any further properties": ({**A, "additionalProperties": True}, ['{"a":1,"b":"x"}', '{"z":[1]}'], ['{"a":"x"}']),
    "a format and a pattern": ({"type": "string", "format": "date", "pattern": "^2"}, ['"2024-01-02"'], ['"1999-01-02"', '"2"']),
    # what is another text
    "an emoji": ({"enum": ["😀"]}, ['"😀"'], ['"\ufffd"']),
    "names outside ASCII": (of("天気", "都市", 天気={}, 都市=INT), ['{"天気":1,"都市":2}'], ['{"天気":1}']),
    # what is valid, and was refused
    "anything": ({}, ANY, ["x"]),
    "a reference at the root": (
        {"$defs": {"Node": of("next", next=NODE)}, "$ref": "#/$defs/Node"}, ['{"next":{"next":null}}'], ['{"next":1}']),
    "a dot": ({"type": "string", "pattern": r"^[0-9]+\.[0-9]{2}$"}, ['"1.00"'], ['"1"', '"1x00"']),
    # what llguidance takes with help
    "one field at least": ({**of(a=INT, b=INT), "minProperties": 1}, ['{"b":1}', '{"a":1,"b":1}'], ["{}"]),
    "one of two closed objects": (
        {"oneOf": [of("k", k={"const": k}, v=INT) for k in "xy"] + [{"type": "null"}]},
        ['{"k":"x"}', '{"k":"y","v":1}', "null"], ['{"k":"z"}', '{"k":"x","w":1}']),
    "names of a dictionary": (
        {"type": "object", "propertyNames": {"enum": ["a", "b.c"]}, "additionalProperties": INT},
        ['{"a":1,"b.c":2}', "{}"], ['{"bxc":1}', '{"a":"x"}']),
    # and the rest
    "a time": (
        {"type": "string", "format": "time", "pattern": "^1"}, ['"12:30:00.123456789Z"', '"12:30:00+02:00"'],
        ['"12:30:00.1234567890Z"', '"02:30:00Z"', '"12:30"']),
    "a date with a time": (
        {"type": ["string", "null"], "format": "date-time"}, ['"2024-01-02T12:30:00Z"', "null"],
        ['"2024-01-02T12:30:00.1234567890Z"']),
    "a format of no standard": ({"type": "string", "format": "color"}, ['"a"'], ["1"]),
    "a draft by another address": (
        {"$schema": "http://json-schema.org/draft/2020-12/schema", "type": "integer"}, ["1"], ['"a"']),
    "a count that is no integer": ({"type": "string", "maxLength": 2.0, "uniqueItems": False}, ['"ab"'], ['"abc"']),
    "a property named format": (of(format=INT), ['{"format":1}'], ['{"format":"x"}']),
    "spaces": (A, ['{ "a": 1 }', '{\n  "a": 1\n}', "{}"], ['{   "a":1}', ' {"a":1}', '{"a":1} ', '{\n\n"a":1}']),
    "a long text": (
        {"type": "string", "minLength": 100, "maxLength": 300}, [json.dumps("a" * 300)],
        [json.dumps("a" * n) for n in (99, 301)]),
    "a long list": (
        {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 30}, ["[1,1]"], ["[1]", f"[{'1,' * 30}1]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_a_schema_holds(name, takes):
    if name == "spaces" and not schemas._takes_spaces():
        pytest.skip("an llguidance this old takes other spaces between parts")
    schema, right, wrong = HELD[name]
    for text in (*right, *wrong):
        assert takes(of_schema(schema), text) == (text in right), text
    defs = schema if isinstance(schema, dict) and "$defs" in schema else {}
    inside = {"$id": "urn:x", **schema} if isinstance(schema, dict) else schema
    if not defs:
        assert takes(of_schema(of("v", v=inside)), f'{{"v":{right[0]}}}')


REFUSED: dict[str, tuple[Any, str]] = {
    "not": (of(a=of(b={"not": INT})), "not at #/properties/a/properties/b cannot be followed"),
    "uniqueItems": ({"type": "array", "uniqueItems": True, "items": TEXT}, "uniqueItems at # "),
    "contains": (of(contains={"items": {"contains": {"const": 1}}}), "contains at #/properties/contains/items "),
    "if": ({"anyOf": [{}, {"if": {"pattern": "^a"}, "then": {"maxLength": 2}}]}, "if at #/anyOf/1 "),
    "propertyNames": ({"propertyNames": {"anyOf": [{"pattern": "^a"}]}}, "propertyNames at # "),
    "dependentRequired": (
        {"$defs": {"x": {"dependentRequired": {"a": ["b"]}}}, "$ref": "#/$defs/x"}, "dependentRequired at #/.defs/x "),
    "minProperties": ({**of(a=INT, b=INT, c=INT), "minProperties": 2}, "minProperties at #: "),
    "a look ahead": (of(a={"type": "string", "pattern": "^(?!a)b$"}), "pattern at #/properties/a: .*look-ahead"),
    "a pattern that is none": ({"type": "string", "pattern": "("}, "pattern at #: .*unclosed"),
    "patterns that overlap": ({"type": "object", "patternProperties": {"^a": INT, "b": TEXT}}, "patternProperties at #: "),
    "a reference to nothing": (of(a={"$ref": "#/$defs/None"}), "ref at #/properties/a: "),
    "a reference to elsewhere": ({"$ref": "https://example.invalid/x.json"}, "ref at #: .*example.invalid"),
    "a type that there is not": ({"type": "any"}, "type at #: .*any"),
    "parts that exclude each other": ({"allOf": [INT, TEXT]}, "incompatible"),
    "false": (False, "not an object"),
    "a list": ([], "not an object"),
    "half a character": ({"const": "\ud83d"}, "UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_said_with_its_place(name):
    schema, said = REFUSED[name]
    with pytest.raises(InputError, match=said):
        of_schema(schema)


@pytest.mark.parametrize(("pattern", "same"), schemas._SAME.items())
def test_a_pattern_is_the_same_without_looking_ahead(pattern, same):
    for length in range(6):
        for text in map("".join, product("+-.01", repeat=length)):
            assert bool(re.search(pattern, text)) == bool(re.search(same, text)), text


def test_a_schema_that_nothing_satisfies_is_refused(llama):
    with pytest.raises(InputError, match="grammar"):
        check_constraint(Constraint(of_schema({"$ref": "#"})), llama)


POINT = of("x", x=INT)
DEFS = {"Point": POINT, "Loop": of(**{"in": {"$ref": "#/$defs/Loop"}})}
LOOSE: dict[str, tuple[Any, list[str], list[str]]] = {
    "a reference": ({"$ref": "#/$defs/Point"}, ['{"x":1}'], ['{"x":"a"}', "{}"]),
    "a reference or null": ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, ['{"x":1}', "null"], ["1"]),
    "a reference to itself": ({"$ref": "#/$defs/Loop"}, ['{"in":{"in":{}}}'], ['{"in":1}']),
    "a list of references": ({"type": "array", "items": {"$ref": "#/definitions/Point"}}, ['[{"x":1}]'], ["[1]"]),
    "no type": ({"title": "Value"}, ANY, []),
    "true": (True, ANY, []),
    "a type in capitals": ({"type": "STRING"}, ['"a"'], ["1"]),
    "a type of its own": ({"type": "any"}, ANY, []),
    "nullable": ({"type": "string", "nullable": True, "enum": ["a"]}, ['"a"', "null"], ['"b"']),
    "a pattern that looks ahead": ({"type": "string", "pattern": "^(?!a)b$"}, ['"b"', '"c"'], ["1"]),
    "a reference to nothing": ({"type": "array", "items": {"$ref": "#/$defs/None"}}, ['["a"]'], ["1"]),
    "what it is not": ({"type": "string", "not": {"const": "a"}}, ['"b"', '"a"'], ["1"]),
    "a condition": (
        {**of(k=INT), "if": of("k"), "then": {"properties": {"v": INT}, "required": ["v"]}},
        ["{}", '{"k":1,"v":1}', '{"k":1}'], ['{"k":"x"}', '{"w":1}']),
    "a set of anything": ({"type": "array", "uniqueItems": True}, ["[1]", "[1,1]"], ["1"]),
    "a bound that is none": ({"type": "integer", "minimum": "x"}, ["1"], ['"a"']),
    "no further properties": ({**POINT, "required": []}, ['{"x":1}', "{}"], ['{"y":1}']),
    "patterns of names": ({"type": "object", "patternProperties": {"^.*$": {"type": "string"}}}, ['{"a":"b"}'], ['{"a":1}']),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOSE)
def test_a_tools_argument_follows_what_can_be_held(name, takes):
    part, right, wrong = LOOSE[name]
    schema = {**of("v", "n", v=part, n=INT), "$defs": DEFS, "definitions": DEFS}
    language = Language(json_expression(tool_schema(schema)))
    for text in (*right, *wrong):
        assert takes(language, f'{{"v":{text},"n":1}}') == (text in right), text
    assert not takes(language, f'{{"v":{right[0]},"n":"a"}}')


def test_one_argument_that_cannot_be_held_leaves_the_others_as_they_are(takes):
    ahead = {"type": "string", "pattern": "^(?!a)b$", "maxLength": 1}
    defs = {**DEFS, "Bad": of("w", w=ahead)}
    schema = {**of("p", "b", p={"$ref": "#/$defs/Point"}, b={"$ref": "#/$defs/Bad"}), "$defs": defs}
    language = Language(json_expression(tool_schema(schema)))
    assert takes(language, '{"p":{"x":1},"b":{"w":"a"}}')
    assert not takes(language, '{"p":{"x":"a"},"b":{"w":"a"}}')
    assert not takes(language, '{"p":{"x":1},"b":{"w":"ab"}}')


def test_what_is_left_out_is_said(caplog):
    caplog.set_level("INFO", "pyspec")
    tool_schema(of(v={"type": "string", "not": {"const": "x"}}, w={"pattern": "(?=b)"}))
    assert "not" in caplog.text
    assert "pattern" in caplog.text


def test_a_part_of_a_schema_may_have_what_is_left_out():
    part = {"type": "array", "uniqueItems": True}
    assert part_of({}, part) == part


def test_a_part_of_a_schema_keeps_its_definitions(takes):
    """Families write arguments one by one."""
    whole = tool_schema(
        {"type": "object", "properties": {"v": {"$ref": "#/$defs/Point"}}, "$defs": DEFS}
    )
    part = Language(json_expression(part_of(whole, whole["properties"]["v"])))
    assert takes(part, '{"x":1}')
    assert not takes(part, '{"x":"a"}')


def test_arguments_of_which_one_is_needed_keep_their_types(takes):
    """Some tools say so beside their arguments."""
    either = [{"required": ["x"]}, {"required": ["v"]}]
    language = Language(json_expression(tool_schema({**POINT, "required": [], "anyOf": either})))
    assert takes(language, '{"x":1}')
    assert not takes(language, '{"x":"a"}')


@pytest.mark.parametrize(
    ("schema", "made"), [(None, NO_ARGUMENTS), ({}, NO_ARGUMENTS), ({"type": "object"}, ANY_OBJECT)]
)
def test_a_tool_may_have_no_schema(schema, made):
    assert tool_schema(schema) == made


def test_what_is_no_schema_is_refused():
    with pytest.raises(InputError, match="not an object"):
        tool_schema("x")


def test_a_schema_too_deep_is_any_object(caplog):
    caplog.set_level("INFO", "pyspec")
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    assert tool_schema({"type": "object", "properties": {"v": schema}}) == ANY_OBJECT
    assert "levels deep" in caplog.text


def test_a_schema_of_thousands_of_parts_is_not_tried_part_by_part():
    """It is any object if more than a few cannot be held."""
    parts = {f"a{n}": {"pattern": f"(?={n})"} for n in range(1200)}
    assert tool_schema({"type": "object", "properties": parts}) == ANY_OBJECT


@pytest.fixture
def read_again():
    schemas._takes_spaces.cache_clear()
    yield
    schemas._takes_spaces.cache_clear()


@pytest.mark.usefixtures("read_again")
@pytest.mark.parametrize(("found", "spaces"), [("1.5.0", False), ("1.9.1", True), ("1.10.0", True)])
def test_an_old_llguidance_writes_spaces_between_parts_alone(monkeypatch, found, spaces):
    """It knows no pattern of them, and would let a model write them for ever. Calls have them there in most families."""
    monkeypatch.setattr(schemas, "version", lambda _: found)
    options = json.loads(schemas._written({"type": "object"}))["x-guidance"]
    assert ("whitespace_pattern" in options) is spaces
    assert options.get("whitespace_flexible", True) is spaces
    assert ("key_separator" in options) is not spaces
