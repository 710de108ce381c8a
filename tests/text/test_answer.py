"""From tokens to parts: marks that are control tokens, stop strings, and why an answer ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from helpers import tiny
from helpers.called import FUNCTIONS
from helpers.matched import may_come

from pyspec.engine.target import TargetLlama
from pyspec.grammar.masks import Masks
from pyspec.text.answer import AnswerReader, Speech
from pyspec.text.notation import THINK, Notation
from pyspec.text.parser import AnswerParser
from pyspec.text.parts import WholeAnswer
from pyspec.vocab.tokenizer import piece_reader

MARKS = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "<|other|>")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("marks") / "marks.gguf"
    tiny.write(path, tokens=tiny.ASCII, marks=MARKS)
    with closing(TargetLlama(str(path), trust=True, n_ctx=64, verbose=False)) as opened:
        yield opened


@pytest.fixture
def speech(llm: Any) -> Speech:
    piece = piece_reader(llm._model.vocab)
    return Speech(["[THINK] [/THINK] [TOOL_CALLS] [ARGS]"], llm.tokenizer_, piece)


def ids_of(llm: Any, text: str) -> list[int]:
    return list(llm.tokenize(text.encode(), add_bos=False, special=True))


def read(reader: AnswerReader, ids: list[int]) -> WholeAnswer:
    return WholeAnswer.of([p for token in ids for p in reader.push([token])] + reader.finish())


def test_tools_that_are_too_many_for_a_grammar_keep_their_names(llm: Any, speech: Speech) -> None:
    """Agents may have hundreds: their schemas are then left out of the grammar, and the request is no error."""
    schema = {"type": "object", "properties": {f"p{n}": {"enum": [n]} for n in range(600)}}
    made = speech.shape([], functions={f"tool_{n}": schema for n in range(200)})
    assert made is not None
    masks = Masks(made, llm)
    for token in ids_of(llm, "[TOOL_CALLS]tool_19"):
        masks.accept(token)
    assert may_come(masks, *ids_of(llm, "9"))
    assert not may_come(masks, *ids_of(llm, "x"))


def test_marks_that_are_control_tokens(llm: Any, speech: Speech) -> None:
    ids = ids_of(llm, "[THINK]Hm.[/THINK]So<|other|>.[TOOL_CALLS]now[ARGS]{}")
    reader = speech.reader(ids_of(llm, "x"), functions=FUNCTIONS)
    answer = read(reader, ids)
    assert (answer.reasoning, answer.content) == ("Hm.", "So.")
    assert [call.name for call in answer.calls] == ["now"]
    assert reader.reason("stop") == "tool_calls"
    assert reader.reason("length") == "length"


def test_without_tools_marks_of_calls_are_not_shown(llm: Any, speech: Speech) -> None:
    answer = read(speech.reader([]), ids_of(llm, "a[TOOL_CALLS]b"))
    assert (answer.content, answer.calls) == ("ab", [])


def test_the_prompt_says_where_an_answer_begins(llm: Any, speech: Speech) -> None:
    assert speech.start(ids_of(llm, "user[THINK]\n")) == "inside"
    assert speech.start(ids_of(llm, "[THINK]user")) == "free"
    assert speech.start(ids_of(llm, "user[THINK]\n\n[/THINK]\n")) == "behind"
    reader = speech.reader(ids_of(llm, "user[THINK]"))
    assert read(reader, ids_of(llm, "Hm")).reasoning == "Hm"
    assert reader.inside


def test_a_plain_text_has_no_parts(llm: Any, speech: Speech) -> None:
    assert read(speech.plain_reader(["z"]), ids_of(llm, "<think>x yz")).content == "<think>x y"


def thinking(stop: list[str]) -> AnswerReader:
    return AnswerReader(
        lambda token: chr(token).encode(), stop, AnswerParser(Notation(THINK), functions=FUNCTIONS)
    )


def test_stop_strings_end_content_alone() -> None:
    """A model that thinks of one goes on, and so do arguments."""
    reader = thinking(["END"])
    call = '<tool_call>{"name": "now", "arguments": {"x": "END"}}</tool_call>'
    answer = read(reader, [ord(c) for c in f"<think>END</think>a EN{call}D b END c"])
    assert (answer.reasoning, answer.content) == ("END", "a END b ")
    assert [call.arguments for call in answer.calls] == ['{"x": "END"}']
    assert reader.done


def test_half_a_stop_string_comes_at_the_end() -> None:
    reader = thinking(["END"])
    assert reader.push(map(ord, "a EN"))[0].text == "a "
    assert "".join(part.text for part in reader.finish()) == "EN"
    assert not reader.done


@pytest.mark.parametrize("cut", range(5, 52))
def test_a_demanded_call_that_is_cut_is_no_text(cut: int) -> None:
    """Wherever it ends: neither its mark nor its arguments are what the model says."""
    call = '<tool_call>{"name": "now", "arguments": {"x": "a b"}}</tool_call>'
    parser = AnswerParser(Notation(THINK), functions=FUNCTIONS)
    reader = AnswerReader(lambda token: chr(token).encode(), (), parser, forced=True)
    answer = read(reader, [ord(c) for c in f"<think>Hm.</think>{call[:cut]}"])
    assert (answer.reasoning, answer.content, answer.calls) == ("Hm.", "", [])
