"""Programs that ask any server of OpenAI's or Anthropic's interface: litellm and LangChain."""

import asyncio

import pytest
from helpers.asking import ask, text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of what they import


@pytest.fixture
def litellm(monkeypatch):
    """The library, which then asks no other server for prices."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm", reason="install pyspec-llama[clients]")


MESSAGES = [{"role": "user", "content": "hello there"}]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_litellm_asks_by_either_interface(serve, litellm, provider):
    server = serve()
    base = f"{server.url}/v1" if provider == "openai" else server.url
    asked = {"model": f"{provider}/tiny", "messages": MESSAGES, "api_base": base, "api_key": "none",
             "temperature": 0, "max_tokens": 12}  # fmt: skip
    whole = litellm.completion(**asked)
    text = whole.choices[0].message.content
    assert (bool(text), whole.usage.completion_tokens) == (True, 12)
    assert whole.choices[0].finish_reason == "length"
    chunks = list(litellm.completion(**asked, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**{**asked, "messages": [{"role": "user", "content": "a" * 5000}]})


def test_litellm_completes_texts(serve, litellm):
    server = serve()
    asked = {"model": "text-completion-openai/tiny", "api_key": "none"}
    asked["api_base"] = f"{server.url}/v1"
    done = litellm.text_completion(prompt="abc", max_tokens=6, temperature=0, **asked)
    told = ask(server, "/v1/completions", prompt="abc", max_tokens=6, temperature=0)
    assert done.choices[0].text == text_of(told)


@pytest.fixture
def model(serve):
    langchain = pytest.importorskip(
        "langchain_openai", reason="the extra [clients] is not installed"
    )
    options = {"model": "tiny", "api_key": "none", "max_tokens": 200, "max_retries": 0}
    return langchain.ChatOpenAI(base_url=f"{serve().url}/v1", **options)


def test_langchain_asks_whole_and_streamed(model):
    whole = model.invoke("hello")
    assert "".join(chunk.text for chunk in model.stream("hello")) == whole.text
    assert whole.usage_metadata["output_tokens"] == 200


def test_langchain_asks_several_at_once(model):
    async def together():
        return await model.abatch(["hello"] * 4, max_tokens=20)

    (text,) = {answer.text for answer in asyncio.run(together())}
    assert text == model.invoke("hello", max_tokens=20).text
