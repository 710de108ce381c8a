"""The server as LangChain sees it: another base URL is all that changes."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

pytest.importorskip("langchain_openai", reason="the extra [clients] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def model(serve):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        base_url=f"{serve().url}/v1", api_key="none", model="tiny", max_tokens=200, max_retries=0
    )


def test_invoke_and_stream(model):
    whole = model.invoke("hello")
    assert "".join(chunk.text for chunk in model.stream("hello")) == whole.text
    assert whole.usage_metadata["output_tokens"] == 200


def test_batch(model):
    """Several at once, each with its own answer."""
    texts = [f"question {i}" for i in range(8)]
    alone = [model.invoke(text, max_tokens=20).text for text in texts]
    found = model.batch(texts, max_tokens=20)
    assert [answer.text for answer in found] == alone

    async def together():
        return await asyncio.gather(*(model.ainvoke(text, max_tokens=20) for text in texts))

    assert [answer.text for answer in asyncio.run(together())] == alone


def test_structured_output(model):
    from pydantic import BaseModel

    class Answer(BaseModel):
        """An answer."""

        right: bool
        size: Literal["small", "large"]

    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(Answer, method=method).invoke("how many?")
        assert isinstance(found, Answer)
