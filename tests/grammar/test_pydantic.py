"""What pydantic writes for everyday models: what such a model dumps can be answered, and what it refuses cannot."""

from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest

from pyspec.grammar.languages import Language
from pyspec.grammar.schemas import json_expression, of_schema, tool_schema

pydantic = pytest.importorskip("pydantic", reason="comes with openai")
Field, conint, constr = pydantic.Field, pydantic.conint, pydantic.constr


class Colour(enum.Enum):
    """Values by name."""

    RED = "red"
    BLUE = "blue"


class Point(pydantic.BaseModel):
    """A model with a default."""

    x: int
    y: float = 0.5


class Tree(pydantic.BaseModel):
    """A model within itself."""

    name: str
    children: list[Tree] = Field(default_factory=list)


class Cat(pydantic.BaseModel):
    """One of two, told apart by its kind."""

    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    """The other."""

    kind: Literal["dog"]
    name: str


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
ID = "12345678-1234-5678-1234-567812345678"
KINDS: dict[str, tuple[Any, list[str], list[str]]] = {
    "Optional": (int | None, ["1", "null"], ['"a"']),
    "Union": (int | str, ["1", '"a"'], ["[]"]),
    "Literal": (Literal["a", 1], ['"a"', "1"], ['"b"', "2"]),
    "Enum": (Colour, ['"red"'], ['"green"']),
    "Enum or nothing": (Colour | None, ['"red"', "null"], ['"green"']),
    "nested": (Point, ['{"x":1,"y":0.5}', '{"x":1}'], ['{"x":1,"z":1}', '{"y":1}', '{"x":"a"}']),
    "nested or nothing": (Point | None, ['{"x":1}', "null"], ['{"x":1,"z":1}']),
    "described": (Annotated[Point, Field(description="a place")], ['{"x":1}'], ['{"x":1,"z":1}']),
    "recursive": (
        Tree, ['{"name":"a","children":[{"name":"b","children":[]}]}'],
        ['{"name":"a","children":[{"name":1}]}', '{"name":"a","children":[{"name":"b","z":1}]}']),
    "list": (list[Point], ['[{"x":1}]', "[]"], ['[{"x":1,"z":1}]', "[1]"]),
    "tuple": (tuple[int, str], ['[1,"a"]'], ["[1]", '["a",1]', '[1,"a",2]']),
    "dict": (dict[str, int], ['{"a":1}', "{}"], ['{"a":"x"}']),
    "dict of anything": (dict, ['{"a":[1]}', "{}"], ["[]"]),
    "dict by names": (dict[Literal["a", "b"], int], ['{"a":1}'], ['{"c":1}']),
    "dict by an enum": (dict[Colour, int], ['{"red":1}'], ['{"green":1}']),
    "dict by a pattern": (dict[Annotated[str, Field(pattern="^a")], int], ['{"ab":1}'], ['{"b":1}']),
    "constr": (constr(min_length=2, max_length=3), ['"ab"'], ['"a"', '"abcd"']),
    "constr of a pattern": (constr(pattern=r"^\d{3}$"), ['"123"'], ['"12"']),
    "conint": (conint(ge=1, le=10), ["1", "10"], ["0", "11", "1.5"]),
    "conint of a multiple": (conint(multiple_of=5), ["5", "10"], ["4"]),
    "conlist": (pydantic.conlist(int, min_length=1, max_length=2), ["[1]"], ["[]", "[1,2,3]"]),
    "date": (dt.date, ['"2024-02-29"'], ['"2024-13-01"', "1"]),
    "datetime": (dt.datetime, ['"2024-01-02T12:30:00Z"'], ['"2024-01-02"']),
    "Decimal": (Decimal, ['"1.50"', "1.5"], ["[]"]),
    "UUID": (uuid.UUID, [f'"{ID}"'], ['"1"']),
    "bytes": (bytes, ['"a"'], ["1"]),
    "discriminated": (
        Pet, ['{"kind":"cat","lives":9}', '{"kind":"dog","name":"a"}'],
        ['{"kind":"cat","name":"a"}', '{"kind":"dog","name":"a","lives":1}', '{"kind":"cow"}']),
    "a list of discriminated": (list[Pet], ['[{"kind":"cat","lives":9}]'], ['[{"kind":"cat"}]']),
    "any": (Any, ["1", '{"a":1}', "null"], ["x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_models_field_is_followed(name, takes):
    kind, right, wrong = KINDS[name]
    model = pydantic.create_model("Answer", v=(kind, ...))
    schema = model.model_json_schema()
    for language in (of_schema(schema), Language(json_expression(tool_schema(schema)))):
        for text in (*right, *wrong):
            assert takes(language, f'{{"v":{text}}}') == (text in right), text
        assert not takes(language, f'{{"v":{right[0]},"z":1}}')
    for text in right:
        model.model_validate(json.loads(f'{{"v":{text}}}'))


def test_a_model_may_allow_more(takes):
    class Open(pydantic.BaseModel, extra="allow"):
        a: int

    assert takes(of_schema(Open.model_json_schema()), '{"a":1,"z":[]}')
