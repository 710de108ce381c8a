"""Models of pydantic, filled by the default model through the programs that people use for that."""

import asyncio
import contextlib
import json
from typing import Annotated, Literal

import pytest

instructor = pytest.importorskip("instructor", reason="the extra [clients] is not installed")
pydantic = pytest.importorskip("pydantic", reason="the extra [clients] is not installed")
Field = pydantic.Field
pytestmark = pytest.mark.filterwarnings("ignore")


def shape(name, /, **fields):
    """A model of a closed object: a small model goes on with more properties for ever."""
    config = pydantic.ConfigDict(extra="forbid", populate_by_name=True)
    typed = {key: each if isinstance(each, tuple) else (each, ...) for key, each in fields.items()}
    return pydantic.create_model(name, __config__=config, __module__=__name__, **typed)


Cat = shape("Cat", kind=Literal["cat"], lives=Annotated[int, Field(ge=1, le=9)])
Dog = shape("Dog", kind=Literal["dog"], good=bool)
Pet = shape("Pet", pet=Annotated[Cat | Dog, Field(discriminator="kind")])
Outside = shape("Outside", size=Annotated[int, Field(alias="größe", ge=0, le=99)])
SHAPES = {Pet: {"pet": {"kind": "dog", "good": True}}, Outside: {"größe": 42}}
ASKED = {"temperature": 0.0, "max_tokens": 160}


def says(shape):
    """A small model goes on for ever with some of them if it is not shown an end."""
    return f"Repeat this: {json.dumps(SHAPES[shape], ensure_ascii=False)}"


@pytest.fixture(scope="module")
def url(serve_all, smollm2):
    running = serve_all(smollm2, n_ctx=2048, n_threads=2, n_threads_batch=2, flash_attn=True)
    return f"{running.url}/v1"


@contextlib.contextmanager
def asking(url, shape):
    """OpenAI's client, and what to ask of it."""
    import openai

    messages = [{"role": "user", "content": says(shape)}]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client, {"model": "tiny", "messages": messages, **ASKED}


def by_openai(url, shape):
    with asking(url, shape) as (client, asked):
        made = client.chat.completions.parse(response_format=shape, **asked)
    return made.choices[0].message.parsed


def by_instructor(url, shape, mode="JSON_SCHEMA"):
    """By a schema unless said otherwise. mode: a name of instructor's."""
    with asking(url, shape) as (client, asked):
        made = instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions
        return made.create(response_model=shape, max_retries=0, **asked)


def by_pydantic_ai(url, shape):
    agents = pytest.importorskip("pydantic_ai", reason="the extra [clients] is not installed")
    import openai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def filled():
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=client))
            kind = agents.NativeOutput(shape)
            agent = agents.Agent(model, output_type=kind, model_settings=ASKED, retries=0)
            return (await agent.run(says(shape))).output

    return asyncio.run(filled())


def by_langchain(url, shape):
    chats = pytest.importorskip("langchain_openai", reason="the extra [clients] is not installed")
    import httpx

    with httpx.Client() as client:
        model = chats.ChatOpenAI(
            base_url=url, api_key="none", model="tiny", max_retries=0, http_client=client, **ASKED
        )
        return model.with_structured_output(shape, method="json_schema").invoke(says(shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fill", [by_openai, by_instructor, by_pydantic_ai, by_langchain])
def test_a_model_is_filled(fill, shape, url):
    found = fill(url, shape)
    assert isinstance(found, shape)
    shape.model_validate(found.model_dump(by_alias=True))


def test_a_tool_is_called_with_a_model(url):
    assert isinstance(by_instructor(url, Pet, "TOOLS"), Pet)
