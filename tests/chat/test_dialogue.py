"""The conversation: prompts that fit, what is kept of an answer, and files, of which what others wrote is not believed."""

import json
import stat

import pytest
from helpers.fake_chat import END, FakeModel, session
from hypothesis import given
from hypothesis import strategies as st

from pyspec.chat import dialogue
from pyspec.chat.dialogue import Conversation, Exchange, fit, spoken, unended, why_cut
from pyspec.errors import ContextOverflow, InputError
from pyspec.text.messages import Message
from pyspec.text.parts import AnswerPart, Piece, Result, Source, Token, result_of


def token(char):
    return Token(ord(char), Source.TARGET, 0.0, ord(char))


def conversation(*sizes):
    """Exchanges whose questions have these many characters, with answers of one; the last open."""
    made = [Exchange("q" * size, Result(text="a", tokens=(token("a"),))) for size in sizes]
    made[-1].answer = None
    return Conversation("s", made)


@pytest.mark.parametrize(("reason", "most", "cut", "says"), [
    ("stop", 9, False, ""),
    ("stop", 9, True, "the answer ended inside its reasoning"),
    ("length", 9, False, "stopped at 9 tokens; longer"),
    ("length", 1, True, "stopped at 1 token inside its reasoning; longer"),
    ("length", 0, False, ""),
    ("context", 9, False, "stopped: the context of 64 tokens is full; wider"),
    ("context", 9, True, "stopped inside its reasoning: the context of 64 tokens is full; wider"),
])  # fmt: skip
def test_why_an_answer_was_cut_is_said(reason, most, cut, says):
    answer = Result(finish_reason=reason, reasoning_cut=cut)
    assert why_cut(answer, most, 64, "longer", "wider") == says


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(40, 300))
def test_trimming_keeps_system_and_question(sizes, n_ctx):
    talk = conversation(*sizes)
    whole, encode = list(talk.exchanges), FakeModel([]).prompt
    try:
        prompt, dropped = fit(talk, encode, n_ctx)
    except ContextOverflow:
        least = encode([*talk.messages()[:1], Message(role="user", content="q" * sizes[-1])])
        assert len(least) >= n_ctx
        assert talk.exchanges == whole
        return
    assert prompt == encode(talk.messages())
    assert talk.exchanges == whole[dropped:]
    assert not dropped or len(encode(Conversation("s", whole).messages())) > n_ctx - n_ctx // 8
    assert talk.exchanges[-1] is whole[-1]
    assert talk.messages()[0]["role"] == "system"
    assert len(prompt) < n_ctx


def test_spoken_leaves_the_end_and_a_stop_string_out():
    """Tokens behind the shown text do not come back in the next prompt."""
    said, end = (token("h"), token("i")), Token(END, Source.TARGET, 0.0, END)
    for behind in ([end], [token(char) for char in "\nUser:"]):
        assert spoken([*said, *behind], "hi", FakeModel([]).piece) == said


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


MODEL = FakeModel([])

STRANGE = (
    b'{"kind":"pyspec-chat","format":1,"pyspec":"0","model":{"name":""},'
    b'"settings":{},"messages":[{"role":"tool","content":""}]}'
)
ANSWERED = Exchange("hi", Result(text="~", reasoning="Hm.", finish_reason="stop"), seed=7)
TALK = Conversation("be kind", [ANSWERED])


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "talk.json"
    dialogue.save(path, TALK, MODEL.target())
    return path


def edited(path, change):
    content = json.loads(path.read_text())
    content["messages"][-1].update(change)
    path.write_text(json.dumps(content))
    return path


def test_round_trip(saved):
    """Messages and seed come back; tokens, which earlier versions wrote too, stay out of prompts."""
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert dialogue.load(edited(saved, {"tokens": [[2, 0, 0.0, 2]]})) == (TALK, MODEL.target())
    dialogue.save(saved, Conversation(), MODEL.target())
    assert dialogue.load(saved)[0] == Conversation()


def test_turns_alternate_and_an_open_question_is_left_out(saved):
    content = json.loads(saved.read_text())
    with pytest.raises(InputError, match="message 3 is a system turn"):
        dialogue.load(edited(saved, {"role": "system"}))
    del content["messages"][-1]
    saved.write_text(json.dumps(content))
    assert dialogue.load(saved)[0] == Conversation("be kind")


@pytest.mark.parametrize("data", [
    b"", b"{}", b"[" * 100_000, b'{"kind":"pyspec-chat","format":2}', STRANGE,
])  # fmt: skip
def test_what_is_no_logged_chat_is_refused(tmp_path, data):
    path = tmp_path / "talk.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match="is not a logged chat"):
        dialogue.load(path)


def test_read_goes_in_front_of_the_next_message(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\n")
    model = FakeModel(["one"])
    _, text = session(model, f"/read {path}\nwhat is this?\nand now?\n")
    assert text == f"13 characters of {path} will precede the next message\none\none\n"
    question = "first\nsecond\n\n\nwhat is this?"
    assert model.asked[0].prompt == model.prompt([{"role": "user", "content": question}])
    assert bytes(model.asked[1].prompt).count(b"first") == 1


@pytest.mark.parametrize(("command", "says"), [
    ("{}/cat.png", "/read FILE"), ("/read {}/cat.png", "is not UTF-8"), ("/read {}/a\0b", ""), ("/read {}/" + "x" * 300, ""),
    ("/read {}/empty", "is empty"), ("/read", "name a file"),
])  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(tmp_path, command, says):
    """A path that was dropped into the terminal is no command, and pictures are no text."""
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "empty").touch()
    code, text = session(FakeModel(["one"]), command.format(tmp_path) + "\n")
    assert (code, len(text.splitlines()), says in text) == (2, 1, True)


@pytest.mark.parametrize(("name", "written"), [
    ("My File's.txt", "{}/My File's.txt"), ("My File's.txt", "{}/My\\ File\\'s.txt"),
    ("My File's.txt", '"{}/My File\'s.txt"'), ("a\\ 'b'.txt", "{}/a\\ 'b'.txt"),
])  # fmt: skip
def test_a_dropped_file_is_read_as_the_terminal_writes_it(tmp_path, name, written):
    """Backslashes and quotes may be the name's own."""
    (tmp_path / name).write_text("x")
    _, text = session(FakeModel(["one"]), f"/read {written.format(tmp_path)}\n")
    assert text == f"1 character of {tmp_path}/{name} will precede the next message\n"
