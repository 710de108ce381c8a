"""Objects at a Python prompt and in a notebook; they stay what programs take them for."""

import copy
import json
import pickle

import msgspec
import pytest

from pyspec.screen.words import ResultView, SpeculationBlock


@pytest.fixture
def llm(open_llama, tiny_ascii):
    return open_llama(tiny_ascii, draft="lookup")


@pytest.fixture
def result(llm):
    return llm.create_completion("abcabcabc", max_tokens=12, temperature=0.0)


def test_the_model_says_what_it_is(llm, open_llama, tiny_ascii):
    assert repr(llm).startswith("<SpeculativeLlama ")
    assert "draft lookup, strict>" in repr(llm)
    llm.close()
    never_loaded = object.__new__(type(llm))
    assert repr(llm) == repr(never_loaded) == "<SpeculativeLlama, closed>"
    assert repr(open_llama(tiny_ascii, embedding=True)).endswith("decodes plainly>")


def test_a_result_is_its_text_and_a_sentence(result):
    assert isinstance(result, ResultView)
    assert repr(result).startswith(f"<answer {result['choices'][0]['text']!r}; ")
    assert "tokens/s" in repr(result)
    assert str(result) == str(dict(result))


def test_chats_answer_so_too(llm):
    messages = [{"role": "user", "content": "abc"}]
    result = llm.create_chat_completion(messages, max_tokens=4, temperature=0.0)
    assert repr(result["choices"][0]["message"]["content"][:60])[:-1] in repr(result)


def test_the_last_speculation_is_a_sentence_and_counts(llm, result):
    assert result["speculation"] is llm.last_speculation
    assert "tokens/s" in repr(llm.last_speculation)
    assert f"{result['speculation']['accepted']} accepted" in repr(llm.last_speculation)


@pytest.mark.parametrize("copied", [
    lambda block: json.loads(json.dumps(block)), lambda block: pickle.loads(pickle.dumps(block)), copy.deepcopy,
    lambda block: msgspec.json.decode(msgspec.json.encode(block)),
])  # fmt: skip
def test_they_are_dicts_for_programs(result, copied):
    plain = json.loads(json.dumps(dict(result)))
    assert json.loads(json.dumps(copied(result))) == plain
    assert json.loads(json.dumps(copied(result["speculation"]))) == plain["speculation"]


def test_an_empty_block_has_a_repr():
    assert repr(SpeculationBlock({})) == "<speculation: nothing was decoded>"


def test_a_notebook_shows_the_answer_and_a_sentence(result):
    said = result._repr_markdown_()
    assert said.startswith(result["choices"][0]["text"])
    assert said.endswith(f"\n\n*{result['speculation'].sentence}*")
    assert ResultView({"choices": [{"text": "x"}]})._repr_markdown_() == "x"
