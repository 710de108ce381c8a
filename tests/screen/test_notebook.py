"""Objects at a Python prompt and in a notebook; they stay what programs take them for."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Any

import msgspec
import pytest

from pyspec.screen.notebook import ResultView, SpeculationBlock
from pyspec.text.tokens import Source, Token


@pytest.fixture
def llm(open_llama: Any, tiny_ascii: Any) -> Any:
    return open_llama(tiny_ascii, draft="lookup")


@pytest.fixture
def result(llm: Any) -> Any:
    return llm.create_completion("abcabcabc", max_tokens=12, temperature=0.0)


def test_the_model_says_what_it_is(llm: Any) -> None:
    """File, context, draft and rule; closed when it is."""
    assert repr(llm).startswith("<SpeculativeLlama ")
    assert "draft lookup, strict>" in repr(llm)
    assert llm._repr_html_().startswith("<code>&lt;SpeculativeLlama ")
    llm.close()
    assert repr(llm) == "<SpeculativeLlama, closed>"


def test_a_model_without_speculation_says_so(open_llama: Any, tiny_ascii: Any) -> None:
    assert repr(open_llama(tiny_ascii, embedding=True)).endswith("decodes plainly>")


def test_a_model_that_was_never_loaded_has_a_repr() -> None:
    from pyspec.llama.speculative import SpeculativeLlama

    assert repr(object.__new__(SpeculativeLlama)) == "<SpeculativeLlama, closed>"


def test_a_result_is_its_text_and_a_sentence(result: Any) -> None:
    """At a prompt; `print` shows the dict."""
    assert isinstance(result, ResultView)
    assert repr(result).startswith(f"<answer {result['choices'][0]['text']!r}; ")
    assert "tokens/s" in repr(result)
    assert str(result) == str(dict(result))


def test_chats_answer_so_too(llm: Any) -> None:
    messages = [{"role": "user", "content": "abc"}]
    result = llm.create_chat_completion(messages, max_tokens=4, temperature=0.0)
    assert repr(result["choices"][0]["message"]["content"][:60])[:-1] in repr(result)


def test_the_last_speculation_is_a_sentence_and_counts(llm: Any, result: Any) -> None:
    assert result["speculation"] is llm.last_speculation
    assert "tokens/s" in repr(llm.last_speculation)
    assert f"{result['speculation']['accepted']} accepted" in repr(llm.last_speculation)


@pytest.mark.parametrize(
    "copied",
    [
        lambda block: json.loads(json.dumps(block)),
        lambda block: pickle.loads(pickle.dumps(block)),
        copy.deepcopy,
        lambda block: msgspec.json.decode(msgspec.json.encode(block)),
    ],
)
def test_they_are_dicts_for_programs(result: Any, copied: Any) -> None:
    """As JSON, pickled and copied, without what they show."""
    plain = json.loads(json.dumps(dict(result)))
    assert json.loads(json.dumps(copied(result))) == plain
    assert json.loads(json.dumps(copied(result["speculation"]))) == plain["speculation"]


def test_a_notebook_shows_tokens_in_colours(result: Any, llm: Any) -> None:
    """The whole text, drafted tokens coloured, a legend and the sentence."""
    tokens = [Token(40, Source.TARGET, 0.0, 40), Token(41, Source.ACCEPTED, 0.0, 41)]
    block = SpeculationBlock(result["speculation"], tokens, llm)
    result = ResultView({**result, "speculation": block})
    html = result._repr_html_()
    own, drafted = (llm.piece(token.id).decode() for token in tokens)
    assert f'{own}<span style="color:#2e8b57">{drafted}</span></pre>' in html
    assert "drafted and right" in html
    assert "tokens/s" in html
    assert result["speculation"]._repr_html_().count("<pre") == 1
    llm.close()
    assert "<pre" in result._repr_html_()  # the text is there still
    assert "color:" not in result._repr_html_()


def test_text_is_no_markup(llm: Any) -> None:
    """What a model says cannot become a part of the page."""
    said = ResultView({"choices": [{"text": "<script>"}]})
    assert "<script>" not in said._repr_html_()
    assert "&lt;script&gt;" in said._repr_html_()


def test_an_empty_block_has_a_repr() -> None:
    assert repr(SpeculationBlock({})) == "<speculation: nothing was decoded>"


@pytest.mark.parametrize(
    ("sources", "legend"),
    [
        ((Source.TARGET,), []),
        ((Source.TARGET, Source.ACCEPTED), ["drafted and right"]),
        ((Source.RELAXED,), ["drafted and close"]),
        ((Source.ACCEPTED, Source.RELAXED), ["drafted and right", "drafted and close"]),
    ],
)
def test_the_legend_has_the_colours_that_there_are(
    llm: Any, result: Any, sources: tuple[Source, ...], legend: list[str]
) -> None:
    """An answer without drafted tokens has no colour to explain."""
    tokens = [Token(40 + i, source, 0.0, 40 + i) for i, source in enumerate(sources)]
    shown = SpeculationBlock(result["speculation"], tokens, llm)._repr_html_()
    assert re.findall(r"drafted and \w+", shown) == legend
