"""The conversation: prompts that fit, what is kept of an answer, and the model over llama.cpp that answers."""

import pytest
from helpers.fake_chat import END, FakeModel
from hypothesis import given
from hypothesis import strategies as st

from pyspec.chat.dialogue import Conversation, Exchange, fit, spoken, unended, why_cut
from pyspec.errors import ContextOverflow
from pyspec.text.messages import Message
from pyspec.text.parts import AnswerPart, Piece, Result, Source, Token, result_of


def token(char):
    return Token(ord(char), Source.TARGET, 0.0, ord(char))


def conversation(*sizes):
    """Exchanges whose questions have these many characters, with answers of one; the last open."""
    made = [Exchange("q" * size, Result(text="a", tokens=(token("a"),))) for size in sizes]
    made[-1].answer = None
    return Conversation("s", made)


@pytest.mark.parametrize(
    ("reason", "most", "cut", "says"),
    [
        ("stop", 9, False, ""),
        ("stop", 9, True, "the answer ended inside its reasoning"),
        ("length", 9, False, "stopped at 9 tokens; longer"),
        ("length", 1, True, "stopped at 1 token inside its reasoning; longer"),
        ("length", 0, False, ""),
        ("context", 9, False, "stopped: the context of 64 tokens is full; wider"),
        ("context", 9, True, "stopped inside its reasoning: the context of 64 tokens is full; wider"),
    ],
)  # fmt: skip
def test_why_an_answer_was_cut_is_said(reason, most, cut, says):
    answer = Result(finish_reason=reason, reasoning_cut=cut)
    assert why_cut(answer, most, 64, "longer", "wider") == says


def test_messages_carry_the_generated_tokens():
    said = Conversation(None, [Exchange("hi", Result(text="ab", tokens=(token("a"), token("b"))))])
    assert said.messages() == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ab", "tokens": [97, 98]},
    ]


def test_an_empty_system_text_is_a_system_turn():
    assert Conversation("").messages() == [{"role": "system", "content": ""}]


def test_nothing_is_dropped_while_there_is_room():
    talk = conversation(5, 5)
    prompt, dropped = fit(talk, FakeModel([]).prompt, 1000, trim=True)
    assert dropped == 0
    assert prompt == FakeModel([]).prompt(talk.messages())


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(40, 300))
def test_trimming_keeps_system_and_question(sizes, n_ctx):
    talk = conversation(*sizes)
    whole, encode = list(talk.exchanges), FakeModel([]).prompt
    try:
        prompt, dropped = fit(talk, encode, n_ctx, trim=True)
    except ContextOverflow:
        least = encode([*talk.messages()[:1], Message(role="user", content="q" * sizes[-1])])
        assert len(least) >= n_ctx
        assert talk.exchanges == whole
        return
    assert prompt == encode(talk.messages())
    assert talk.exchanges == whole[dropped:]
    assert talk.exchanges[-1] is whole[-1]
    assert talk.messages()[0]["role"] == "system"
    assert len(prompt) < n_ctx


def test_without_trimming_the_overflow_is_raised():
    talk = conversation(50, 50)
    with pytest.raises(ContextOverflow) as caught:
        fit(talk, FakeModel([]).prompt, 60, trim=False)
    assert (caught.value.have, caught.value.need) == (60, 116)
    assert len(talk.exchanges) == 2


def test_spoken_leaves_the_end_out():
    said = (token("a"), token("b"))
    assert spoken([*said, Token(END, Source.TARGET, 0.0, END)], "ab", FakeModel([]).piece) == said


def test_spoken_leaves_a_stop_string_out():
    """Tokens behind the shown text do not come back in the next prompt."""
    tokens = [token(char) for char in "hi\nUser:"]
    assert spoken(tokens, "hi", FakeModel([]).piece) == (token("h"), token("i"))


def test_reasoning_goes_into_the_next_prompt_as_the_template_has_it():
    tokens = [Token(ord(c), Source.TARGET, 0.0, ord(c)) for c in "<t>Yes"]
    pieces = [
        Piece(tuple(tokens[:3]), parts=[AnswerPart("reasoning", "Hm")]),
        Piece(tuple(tokens[3:]), "stop", parts=[AnswerPart("content", "Yes")]),
    ]
    answer = unended(result_of(pieces, None), lambda token: chr(token).encode())
    assert (answer.text, answer.reasoning) == ("Yes", "Hm")
    assert Conversation(None, [Exchange("hi", answer)]).messages()[-1] == {
        "role": "assistant", "content": "Yes", "reasoning_content": "Hm", "tokens": [t.id for t in tokens],
    }  # fmt: skip
