"""Programs that ask any server of OpenAI's or Anthropic's interface: litellm, lm-evaluation-harness, LangChain."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Literal

import pytest
from helpers.asking import post

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of what they import


@pytest.fixture
def litellm(monkeypatch):
    """The library, which then asks no other server for prices."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm", reason="install pyspec-llama[clients]")


MESSAGES = [{"role": "user", "content": "hello there"}]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_litellm_asks_by_either_interface(serve, litellm, provider):
    """Whole and streamed alike, with usage, and errors of its own kinds."""
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
    """By /v1/completions."""
    server = serve()
    asked = {
        "model": "text-completion-openai/tiny",
        "api_base": f"{server.url}/v1",
        "api_key": "none",
    }
    done = litellm.text_completion(prompt="abc", max_tokens=6, temperature=0, **asked)
    plain = {"prompt": "abc", "max_tokens": 6, "temperature": 0}
    _, told = post(server, json.dumps(plain).encode(), "/v1/completions")
    assert done.choices[0].text == told["choices"][0]["text"]


def test_lm_eval_scores_choices(serve, tmp_path, monkeypatch):
    """A local task by `local-completions`: what it takes for likeliest is what the server's own log-probabilities say."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    lm_eval = pytest.importorskip("lm_eval", reason="install pyspec-llama[clients]")
    server = serve()
    docs = [
        {"q": "once upon", "c": [" a time", " the"], "a": 0},
        {"q": "to be or", "c": [" not", " zzzz"], "a": 1},
    ]
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in docs))
    task = {
        "task": "local", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}},
        "output_type": "multiple_choice", "test_split": "test", "doc_to_text": "q", "doc_to_choice": "c",
        "doc_to_target": "a", "target_delimiter": "", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    arguments = {"model": "tiny", "base_url": f"{server.url}/v1/completions", "tokenizer_backend": "remote",
                 "tokenized_requests": True, "num_concurrent": 1, "max_length": 512}  # fmt: skip
    found = lm_eval.simple_evaluate(
        "local-completions", model_args=arguments, tasks=[task], log_samples=True, bootstrap_iters=0
    )
    samples = found["samples"]["local"]
    for doc, sample in zip(docs, samples, strict=True):
        said = [float(each[0][0]) for each in sample["resps"]]
        assert said == pytest.approx(
            [_score(server, doc["q"], each) for each in doc["c"]], abs=1e-3
        )
    right = [
        max(range(2), key=lambda i: float(s["resps"][i][0][0])) == s["target"] for s in samples
    ]
    assert found["results"]["local"]["acc,none"] == sum(right) / 2


def _score(server, text, choice):
    """Log-probability of a continuation, by echo and logprobs."""
    body = {"prompt": text + choice, "max_tokens": 0, "echo": True, "logprobs": 0}
    _, told = post(server, json.dumps(body).encode(), "/v1/completions")
    told = told["choices"][0]["logprobs"]["token_logprobs"]
    return math.fsum(told[len(text) :])


@pytest.fixture
def model(serve):
    langchain = pytest.importorskip(
        "langchain_openai", reason="the extra [clients] is not installed"
    )
    return langchain.ChatOpenAI(
        base_url=f"{serve().url}/v1", api_key="none", model="tiny", max_tokens=200, max_retries=0
    )


def test_langchain_asks_whole_and_streamed(model):
    whole = model.invoke("hello")
    assert "".join(chunk.text for chunk in model.stream("hello")) == whole.text
    assert whole.usage_metadata["output_tokens"] == 200


def test_langchain_asks_several_at_once(model):
    texts = [f"question {i}" for i in range(8)]
    alone = [model.invoke(text, max_tokens=20).text for text in texts]
    found = model.batch(texts, max_tokens=20)
    assert [answer.text for answer in found] == alone

    async def together():
        return await asyncio.gather(*(model.ainvoke(text, max_tokens=20) for text in texts))

    assert [answer.text for answer in asyncio.run(together())] == alone


def test_langchain_has_structured_output(model):
    from pydantic import BaseModel

    class Answer(BaseModel):
        """An answer."""

        right: bool
        size: Literal["small", "large"]

    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(Answer, method=method).invoke("how many?")
        assert isinstance(found, Answer)
