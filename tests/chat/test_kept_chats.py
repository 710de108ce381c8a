"""Chats that are kept: listed, opened, forgotten; and answers that go on."""

import pytest
from helpers.fake_chat import QUIET, FakeModel, said, session, talk

from pyspec.chat import dialogue
from pyspec.chat.commands import execute
from pyspec.errors import InputError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPEC_CHATS", str(tmp_path))
    return tmp_path


def keep(question):
    """A chat that is kept, of this question."""
    chat, _ = talk(FakeModel(["fine"]), QUIET)
    chat.log = dialogue.new_path()
    chat.send(question)
    return chat


def test_chats_are_listed_newest_first_with_their_folder(folder):
    keep("how are you?")
    keep("and\nyou?")
    chat, text = talk(FakeModel(["x"]), QUIET)
    execute(chat, "/chats")
    first, second, where = text.getvalue().splitlines()
    assert (first[:2], first.endswith("fake  and you?")) == ("1 ", True)
    assert second.endswith("fake  how are you?")
    assert str(folder) in where


def test_an_earlier_chat_is_opened_and_goes_on_in_its_own_file(folder):
    older, _ = keep("first").log, keep("second")
    chat, text = talk(FakeModel(["now", "more"], name="other"), QUIET)
    chat.log = former = dialogue.new_path()
    chat.send("here")
    execute(chat, "/chats 3")
    shown = "this conversation was held with fake, not with other\n>>> first\nfine\n"
    assert text.getvalue() == f"now\n{shown}"
    chat.send("third")
    assert chat.log == older
    assert said(older) == ["first", "fine", "third", "more"]
    assert said(former) == ["here", "now"]
    with pytest.raises(InputError, match="4 is not a number from 1 to 3"):
        execute(chat, "/chats 4")


def test_a_chat_is_forgotten_and_not_kept_any_more(folder):
    other, chat = keep("other"), keep("secret")
    execute(chat, "/forget")
    chat.send("more")
    assert list(folder.iterdir()) == [other.log]


def test_all_are_forgotten_if_the_user_agrees(folder):
    chat = keep("one")
    chat.confirm = lambda _: False
    with pytest.raises(InputError, match="nothing was deleted"):
        execute(chat, "/forget all")
    chat.confirm = lambda _: True
    execute(chat, "/forget all")
    assert list(folder.iterdir()) == []


def test_an_answer_that_was_cut_goes_on_and_no_other():
    _, text = session(FakeModel(["one", " two"], finish="length"), "hi\n/continue\n")
    assert text == "one\n two\n"
    chat, _ = talk(model := FakeModel(["one", " two"], finish="length"), QUIET)
    chat.send("hi")
    chat.go_on()
    (exchange,) = chat.conversation.exchanges
    assert exchange.answer.text == "one two"
    assert len(exchange.answer.tokens) == 7
    assert "".join(map(chr, model.asked[1].prompt[-3:])) == "one"
    _, text = session(FakeModel(["one"]), "hi\n/continue\n")
    assert "the last answer ended by itself" in text
