"""The reasoning of an answer, in which alone tokens may be relaxed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspec.text.answer import AnswerReader
from pyspec.text.notation import Notation
from pyspec.text.parser import AnswerParser
from pyspec.text.phase import ReasoningPhase, closers
from pyspec.text.reasoning import THINK


def spelled(token: int) -> bytes:
    return chr(token).encode()


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


@pytest.fixture
def begun() -> Callable[..., ReasoningPhase]:
    """A phase of an answer that has said this much; its tokens are characters."""

    def begin(
        said: str, notation: Notation | None = None, *, inside: bool = False
    ) -> ReasoningPhase:
        notation = notation or Notation(THINK)
        reader = AnswerReader(spelled, (), AnswerParser(notation, inside=inside))
        phase = ReasoningPhase(reader, closers(notation), spelled)
        phase.follow(ids(said))
        return phase

    return begin


@pytest.mark.parametrize(
    ("said", "drafted", "covered"),
    [
        ("", "Hm", False),
        ("<think>", "Hm", True),
        ("<think>Hm", ". So", True),
        ("<think>Hm", "</think>a", False),
        ("<think>Hm</thi", "nk>", False),
        ("<think>Hm", " <", False),
        ("<think>Hm </", "b>", True),
        ("<think>Hm", " <tool_call>", False),
        ("<think>Hm</think>", "a", False),
        ("a<think>", "Hm", False),
    ],
)
def test_covers_what_stays_inside_reasoning(begun, said: str, drafted: str, covered: bool) -> None:
    """Neither a draft that ends it, nor one that may be about to, nor an answer without reasoning."""
    assert begun(said).covers(ids(drafted)) is covered


def test_begins_in_reasoning_that_the_prompt_opened(begun) -> None:
    """As templates do that end with the mark."""
    assert begun("", inside=True).covers(ids("Hm"))


def test_covers_nothing_of_a_model_that_marks_no_reasoning(begun) -> None:
    """Then the rule is strict."""
    assert not begun("<think>", Notation()).covers(ids("Hm"))


def test_covers_the_channel_of_analysis(begun) -> None:
    """As gpt-oss writes it; its final message is strict."""
    channels = Notation(channels=True)
    analysis = "<|channel|>analysis<|message|>Hm"
    assert begun(analysis, channels).covers(ids("m."))
    assert not begun(
        f"{analysis}<|end|><|start|>assistant<|channel|>final<|message|>", channels
    ).covers(ids("a"))
