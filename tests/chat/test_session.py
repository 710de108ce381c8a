"""Whole sessions with a fake model: everything that is written, compared as one text."""

from contextlib import nullcontext
from io import BytesIO

import pytest
from helpers.fake_chat import QUIET, FakeModel, said, session, talk

from pyspec.chat.prompt import run, script_entries
from pyspec.chat.talk import FIELDS, ChatSettings


def test_two_turns():
    settings = ChatSettings(verify="margin", stats="on")
    code, text = session(
        FakeModel(["one", "tw2~", "x"]), "hi\nand?\n/set stats off\nhi\n", settings
    )
    assert code == 0
    assert text == (
        "one\n50.0 tokens/s (drafts off: they would not have paid off here)\n"
        "3 tokens | 50.0 tokens/s | plain 25.0 tokens/s | nothing drafted | prompt 7, 0 kept | draft lookup\n"
        "tw2~\n50.0 tokens/s, 2.0 times plain decoding\n"
        "4 tokens | 50.0 tokens/s | plain 25.0 tokens/s | 2 drafted, 2 checked, 2 accepted | 1.00 tokens a round"
        " | 1 relaxed (0.25 nats) | prompt 20, 10 kept | draft lookup\nstats is off\nx\n"
    )


def test_another_model_goes_on_with_the_text():
    """`/model` loads it; what the former one said is read as text, since its tokens are others."""
    model = FakeModel(["one", "two"])
    _, text = session(model, "hi\n/model other\nand?\n")
    assert text == "one\nother, draft auto\ntwo\n"
    assert model.turns[-1][1] == {"role": "assistant", "content": "one"}


def test_regen_and_undo():
    model = FakeModel(["one", "two", "three"])
    settings = ChatSettings(stats="off", seed=7)
    code, text = session(model, "hi\n/regen\n/undo\n/undo\nnew\n", settings)
    said = "one\ntwo\nremoved: hi\nthere is nothing to undo (ask something first)\nthree\n"
    assert (code, text) == (2, said)
    assert [ask.sampling.seed for ask in model.asked] == [7, 8, 7]
    assert model.asked[0].prompt == model.asked[1].prompt
    assert model.asked[2].prompt == model.prompt([{"role": "user", "content": "new"}])


def test_unknown_commands_are_named():
    lines = "/nothing\n/set mood 1\n/set verify lax\n/forget it\n/set temp\n"
    code, text = session(FakeModel(["x"]), lines)
    assert code == 2
    assert text.splitlines() == [
        "there is no command /nothing (/help lists them)",
        "there is no setting 'mood' (/set lists them)",
        "verify: 'lax' is not one of 'strict', 'margin'",
        "it is not `all` (/forget alone deletes this chat)",
        "temperature is 0.8",
    ]


def test_a_setting_is_known_by_its_option_too_and_shown_without_a_value():
    code, text = session(FakeModel(["x"]), "/set temp 0\n/set temperature\n/set seed\n/set\n")
    lines = text.splitlines()
    assert (code, lines[:2], lines[2]) == (0, ["temperature is 0"] * 2, "seed is random")
    assert [line.split()[0] for line in lines[3:]] == list(FIELDS)


def test_draft_is_changed_and_kept_on_errors():
    model = FakeModel(["one"])
    _, text = session(model, "/draft none\n/draft alien\n/companion tiny\n/draft\n")
    assert text == (
        "draft none, companion none\n"
        "the draft speaks another vocabulary (--draft none)\n"
        "draft none, companion tiny\n"
        "draft none, companion tiny\n"
    )


def test_system_text():
    model = FakeModel(["one"])
    _, text = session(model, "/system\n/system be kind\n/clear\n/system\nhi\n/system -\n/system\n")
    assert text == (
        "no system prompt\n"
        "system prompt changed; the next answer reads the whole conversation again\n"
        "started a new conversation; the system prompt stays\n"
        "be kind\n"
        "one\n"
        "system prompt changed; the next answer reads the whole conversation again\n"
        "no system prompt\n"
    )
    assert bytes(model.asked[0].prompt).startswith(b"S:be kind")


def test_multi_line_messages():
    model = FakeModel(["one"])
    session(model, '"""/help\nme"""\n /exit\n')
    asked = zip([b"/help\nme", b" /exit"], model.asked, strict=True)
    assert all(question in bytes(ask.prompt) for question, ask in asked)


def test_full_context_says_what_to_do():
    model = FakeModel(["one"], n_ctx=40)
    code, text = session(model, f"{'long ' * 20}\nhi\n")
    assert text == (
        "the prompt has 104 tokens and the context holds 40 (/clear or /undo makes room, -c N has more)\none\n"
    )
    assert code == 1
    assert model.asked[0].prompt == model.prompt([{"role": "user", "content": "hi"}])


def test_trimming_drops_the_oldest_turns():
    model = FakeModel(["x" * 20], n_ctx=100)
    _, text = session(model, "/system kind\n111\n222\n333\n444\n")
    assert "the context was full; dropped the 2 oldest exchanges\n" in text
    assert bytes(model.asked[-1].prompt).startswith(b"S:kind\x02U:333")
    _, text = session(FakeModel(["one"], finish="context"), "hi\n")  # full within an answer
    said = "(stopped: the context of 1000 tokens is full; /clear or /undo makes room"
    assert text.startswith(f"one\n{said}")


@pytest.mark.parametrize(("after", "kept"), [(3, ["abc"]), (0, [])])
def test_an_error_keeps_the_partial_answer_or_forgets_the_question(after, kept):
    model = FakeModel(["abcdef"], fail_after=after)
    chat, text = talk(model, ChatSettings(stats="off"))
    code = run(chat, script_entries(BytesIO(b"hi\n")))
    said = "".join(f"{each}\n" for each in [*kept, "a logit is not finite"])
    assert (code, text.getvalue()) == (1, said)
    assert [exchange.answer.text for exchange in chat.conversation.exchanges] == kept


def test_a_chat_is_kept_without_being_asked(tmp_path):
    """Each answer is in the log at once; what is cleared stays in the log's older file. A log that cannot be ends nothing."""
    path = tmp_path / "log.json"
    chat, text = talk(FakeModel(["one", "two"]), QUIET)
    chat.log = path
    chat.send("hi")
    assert said(path) == ["hi", "one"]
    chat.send("and?")
    assert said(path) == ["hi", "one", "and?", "two"]
    chat.log = tmp_path / "nowhere" / "log.json"
    chat.send("hi")
    chat.send("hi")
    assert text.getvalue().count("this chat is not saved") == 1


def test_sigterm_in_an_answer_keeps_it_and_leaves():
    model = FakeModel(["abcdef"], cancel_after=3)
    chat, _ = talk(model, QUIET, guard=lambda _cancel: nullcontext([15]))
    chat.send("hi")
    assert chat.conversation.exchanges[-1].answer.text == "abc"
    assert run(chat, script_entries(BytesIO(b"more\n"))) == 143
