"""`SpeculativeLlama` on the default target: that it is useful, not only right."""

import json

import pytest
from helpers.answers import ask

from pyspec.sampling.verification import Margin, Strict


@pytest.fixture
def llm(open_llama, smollm2):
    """The default target with everything a user gets by default but the companion."""
    return open_llama(smollm2, draft="lookup", verification=Margin(), length="auto", n_ctx=1024)


def test_chat_answers(llm):
    messages = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    result = llm.create_chat_completion(messages, temperature=0.0, max_tokens=24)
    assert "Paris" in result["choices"][0]["message"]["content"]
    assert result["speculation"]["verification"] == "margin"


def test_copying_is_drafted(open_llama, smollm2):
    """A text that repeats itself is mostly accepted drafts; whether they pay on this machine is not asked."""
    llm = open_llama(smollm2, draft="lookup", length="fixed:8", n_ctx=1024)
    prompt = llm.tokenize(("The sea is blue, the sun is hot, the sand is warm. " * 6).encode())
    answer = ask(llm, prompt, 48)
    assert answer.flags.count("a") > 20
    assert llm.last_speculation["mean_length"] > 1.5


def test_closed_gate_is_strict(open_llama, smollm2):
    """Theta 1 gives the strict rule's bytes on the real model too."""
    texts = []
    for rule in (Strict(), Margin(theta=1.0)):
        llm = open_llama(smollm2, draft="lookup", verification=rule)
        prompt = llm.tokenize(b"one two three one two three one two")
        answer = ask(llm, prompt, 32)
        texts.append((answer.ids, answer.flags))
    assert texts[0] == texts[1]


def test_json_schema(llm):
    """A schema is kept while drafting, and nothing is relaxed under it."""
    city = {"type": "string", "maxLength": 12}
    schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    options = {"temperature": 0.0, "max_tokens": 48}
    options["response_format"] = {"type": "json_object", "schema": schema}
    messages = [{"role": "user", "content": "Name a city as JSON."}]
    message = llm.create_chat_completion(messages, **options)["choices"][0]["message"]
    assert isinstance(json.loads(message["content"])["city"], str)
    assert llm.last_speculation["relaxed"] == 0
