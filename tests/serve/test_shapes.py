"""Models of pydantic in fifteen shapes, filled by the default model through the programs that people use for that."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest

instructor = pytest.importorskip("instructor", reason="the extra [clients] is not installed")
pydantic = pytest.importorskip("pydantic", reason="the extra [clients] is not installed")
BaseModel, Field = pydantic.BaseModel, pydantic.Field
pytestmark = pytest.mark.filterwarnings("ignore")


class Colour(enum.Enum):
    """An enum, one of whose values has to be escaped."""

    RED = "red"
    INCH = '5" nail'


class Shape(BaseModel):
    """Of a closed object: a small model goes on with more properties for ever."""

    model_config = pydantic.ConfigDict(extra="forbid", populate_by_name=True)


class Point(Shape):
    """Numbers with bounds."""

    x: int = Field(ge=0, le=9)
    y: float = Field(ge=0, lt=10, multiple_of=0.5)


class Choice(Shape):
    """Literals and an enum."""

    colour: Colour
    level: Literal["low", "high"]
    n: Literal[1, 2]


class Maybe(Shape):
    """What may be null."""

    point: Point | None
    colour: Colour | None


class Either(Shape):
    """A union of plain types."""

    value: int | bool | None


class Cat(Shape):
    """One of two."""

    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(Shape):
    """The other."""

    kind: Literal["dog"]
    good: bool


class Pet(Shape):
    """A union by a discriminator."""

    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Leaf(Shape):
    """A model that has itself."""

    n: int = Field(ge=0, le=9)
    leaf: Leaf | None


class Listed(Shape):
    """Lists of bounded length."""

    points: list[Point] = Field(min_length=1, max_length=2)
    flags: list[bool] = Field(max_length=3)


class Pair(Shape):
    """Tuples."""

    pair: tuple[int, bool]


class Several(Shape):
    """Several of a few choices."""

    colours: Annotated[list[Literal["red", "green", "blue"]], Field(max_length=3)]


class When(Shape):
    """Dates and times."""

    day: dt.date
    at: dt.datetime


class Code(Shape):
    """A pattern and a length."""

    code: str = Field(pattern=r"^v[0-9]{1,3}\.[0-9]$")
    name: str = Field(min_length=1, max_length=8)


class Nested(Shape):
    """Models in models, and a mapping."""

    inner: Point
    more: dict[Literal["a", "b"], bool]


class Outside(Shape):
    """Names outside ASCII, by an alias."""

    size: int = Field(alias="größe", ge=0, le=99)


class Described(Shape):
    """Defaults, descriptions and examples."""

    sure: bool = Field(default=True, description="Whether it is so", examples=[True])
    step: int = Field(default=2, multiple_of=2, ge=0, le=8)


POINT = {"x": 3, "y": 1.5}
SHAPES: dict[type[Any], Any] = {
    Point: POINT,
    Choice: {"colour": '5" nail', "level": "low", "n": 2},
    Maybe: {"point": None, "colour": "red"},
    Either: {"value": 3},
    Pet: {"pet": {"kind": "dog", "good": True}},
    Leaf: {"n": 1, "leaf": {"n": 2, "leaf": None}},
    Listed: {"points": [POINT], "flags": [True, False]},
    Pair: {"pair": [1, True]},
    Several: {"colours": ["blue", "red"]},
    When: {"day": "2024-05-01", "at": "2024-05-01T12:30:00Z"},
    Code: {"code": "v12.3", "name": "Anna"},
    Nested: {"inner": POINT, "more": {"a": True}},
    Outside: {"größe": 42},
    Described: {"sure": False, "step": 4},
    Cat: {"kind": "cat", "lives": 7},
}
Fill = Callable[[str, type[Any]], Any]
ASKED: dict[str, Any] = {"temperature": 0.0, "max_tokens": 160}


def says(shape: type[Any]) -> str:
    """A small model goes on for ever with some of them if it is not shown an end."""
    return f"Repeat this: {json.dumps(SHAPES[shape], ensure_ascii=False)}"


@pytest.fixture(scope="module")
def url(serve_all: Any, smollm2: str) -> str:
    running = serve_all(smollm2, n_ctx=2048, n_threads=2, n_threads_batch=2, flash_attn=True)
    return f"{running.url}/v1"


def by_openai(url: str, shape: type[Any]) -> Any:
    """As the SDK does it."""
    import openai

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        made = client.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": says(shape)}],
            response_format=shape,
            **ASKED,
        )
    return made.choices[0].message.parsed


def by_instructor(url: str, shape: type[Any], mode: str = "JSON_SCHEMA") -> Any:
    """By a schema unless said otherwise. mode: a name of instructor's."""
    import openai

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        asking = instructor.from_openai(client, mode=instructor.Mode[mode])
        return asking.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": says(shape)}],
            response_model=shape,
            max_retries=0,
            **ASKED,
        )


def by_pydantic_ai(url: str, shape: type[Any]) -> Any:
    agents = pytest.importorskip("pydantic_ai", reason="the extra [clients] is not installed")
    import openai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def filled() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=client))
            kind = agents.NativeOutput(shape)
            agent = agents.Agent(model, output_type=kind, model_settings=ASKED, retries=0)
            return (await agent.run(says(shape))).output

    return asyncio.run(filled())


def by_langchain(url: str, shape: type[Any]) -> Any:
    chats = pytest.importorskip("langchain_openai", reason="the extra [clients] is not installed")
    import httpx

    with httpx.Client() as client:
        model = chats.ChatOpenAI(
            base_url=url, api_key="none", model="tiny", max_retries=0, http_client=client, **ASKED
        )
        return model.with_structured_output(shape, method="json_schema").invoke(says(shape))


def by_a_tool(url: str, shape: type[Any]) -> Any:
    return by_instructor(url, shape, "TOOLS")


WAYS = [(by_openai, shape) for shape in SHAPES]
WAYS += [
    (fill, shape)
    for fill in (by_instructor, by_pydantic_ai, by_langchain)
    for shape in (Pet, Leaf, Several, When, Outside)
]


@pytest.mark.parametrize(("fill", "shape"), WAYS)
def test_a_model_is_filled(fill: Fill, shape: type[Any], url: str) -> None:
    found = fill(url, shape)
    assert isinstance(found, shape)
    shape.model_validate(found.model_dump(by_alias=True))


@pytest.mark.parametrize("shape", [Pet, Several])
def test_a_tool_is_called_with_a_model(shape: type[Any], url: str) -> None:
    assert isinstance(by_a_tool(url, shape), shape)
