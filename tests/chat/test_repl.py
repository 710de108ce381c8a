"""Ctrl-C and the end of input: what stops, what is kept, and the exit code."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from helpers.fake_chat import QUIET, FakeModel, talk

from pyspec.chat import prompt as prompt_module
from pyspec.chat import talk as talk_module
from pyspec.chat.prompt import TypedText, run
from pyspec.chat.settings import ChatSettings


@dataclass
class Script:
    """A reader that plays entries; None is Ctrl-C, a number lets that many seconds pass."""

    entries: Sequence[str | float | None]
    interactive: bool = True
    now: float = 100.0
    at: int = 0

    def read(self):
        while self.at < len(self.entries):
            entered = self.entries[self.at]
            self.at += 1
            if entered is None:
                raise KeyboardInterrupt
            if isinstance(entered, str):
                return TypedText(entered)
            self.now += entered
        raise EOFError


@pytest.fixture
def play(monkeypatch):
    def play_(model, entries, **kwargs):
        script = Script(entries, **kwargs)
        for module in (prompt_module, talk_module):
            monkeypatch.setattr(module, "monotonic", lambda: script.now)
        chat, text = talk(model, QUIET, guard=Guard(model).during)
        entered = iter(script.read, None)
        return run(chat, entered, interactive=script.interactive), text.getvalue()

    return play_


@dataclass
class Guard:
    """Lets the fake's own cancel pass through the chat, as Ctrl-C does."""

    model: FakeModel
    cancel: Callable[[], None] = field(default=lambda: None)

    @contextmanager
    def during(self, cancel):
        original = self.model.cancel
        self.model.cancel = lambda: (setattr(self.model, "cancel", original), cancel())
        try:
            yield []
        finally:
            self.model.cancel = original


def test_ctrl_c_keeps_the_partial_answer(play):
    model = FakeModel(["abcdef"], cancel_after=3)
    code, text = play(model, ["hi", 3.0, "and?"])
    assert (code, text.startswith("abc\n(stopped; its text is kept)\n")) == (0, True)
    before = model.asked[0].prompt
    assert model.asked[1].prompt[: len(before) + 3] == [*before, *map(ord, "abc")]


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
