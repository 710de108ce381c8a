"""Ctrl-C and the end of input: what stops, what is kept, and the exit code."""

from contextlib import contextmanager

import pytest
from helpers.fake_chat import QUIET, FakeModel, talk

from pyspec.chat import prompt as prompt_module
from pyspec.chat import talk as talk_module
from pyspec.chat.prompt import TypedText, run
from pyspec.chat.talk import ChatSettings


@pytest.fixture
def play(monkeypatch):
    """Plays entries: the exit code, and all that is said. None is Ctrl-C, a number lets that many seconds pass."""
    now = [100.0]
    for module in (prompt_module, talk_module):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])

    def play_(model, entries, *, interactive=True):
        left = iter(entries)

        def read():
            for entered in left:
                if entered is None:
                    raise KeyboardInterrupt
                if isinstance(entered, str):
                    return TypedText(entered)
                now[0] += entered
            raise EOFError

        @contextmanager
        def guard(cancel):
            """The fake's own cancel passes through the chat, as Ctrl-C does."""
            original = model.cancel
            model.cancel = lambda: (setattr(model, "cancel", original), cancel())
            yield []
            model.cancel = original

        chat, text = talk(model, QUIET, guard=guard)
        return run(chat, iter(read, None), interactive=interactive), text.getvalue()

    return play_


def test_ctrl_c_before_a_word_takes_the_question_back(play):
    model = FakeModel(["abc"], finish="cancelled")
    model.answers = [""]
    code, text = play(model, ["hi", "new"])
    assert code == 0
    assert text == "(stopped; there was no text yet)\n" * 2
    assert model.asked[1].prompt == model.prompt([{"role": "user", "content": "new"}])


def test_ctrl_c_at_the_prompt_says_how_to_leave_and_twice_leaves(play):
    said = "(Ctrl-D or /exit quits)\n"
    assert play(FakeModel(["one"]), [None, 3.0, None, "hi"]) == (0, f"{said}{said}one\n")
    assert play(FakeModel(["one"]), [None, 1.9, None, "hi"]) == (130, said)
    assert play(FakeModel(["abc"], cancel_after=1), ["hi", 1.0, None, "more"])[0] == 130
    assert play(FakeModel(["one"]), ["/nothing"])[0] == 0  # an error on a terminal is no exit code


def test_scripts_end_with_the_first_ctrl_c(play):
    assert play(FakeModel(["one"]), ["hi", None, "more"], interactive=False) == (130, "one\n")
    model = FakeModel(["abc"], cancel_after=1)
    code, text = play(model, ["hi", "more"], interactive=False)
    assert (code, text) == (130, "a\n(stopped; its text is kept)\n")


def test_a_cancelled_regen_keeps_the_old_answer():
    """And its seed, which the next try counts on from."""
    chat, _ = talk(model := FakeModel(["one"]), ChatSettings(stats="off", seed=7))
    chat.send("hi")
    model.answers, model.finish = [""], "cancelled"
    chat.regen()
    (last,) = chat.conversation.exchanges
    assert (last.answer.text, last.seed) == ("one", 7)
