"""Entries: messages of many lines, commands, bytes from a pipe, completion."""

from io import BytesIO

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input.defaults import create_pipe_input
from prompt_toolkit.output import DummyOutput

from pyspec.chat import prompt
from pyspec.chat.prompt import (
    CommandCompleter,
    TerminalReader,
    TypedText,
    script_entries,
    typed,
)
from pyspec.errors import InputEncoding, InputTooLong


def entries(data):
    return list(script_entries(BytesIO(data)))


@pytest.mark.parametrize(("entry", "is_command"), [
    (typed("/help"), True),
    (typed('"""/help"""'), False),
    (typed(" /help"), False),
    (TypedText("/help\n"), True),
    (TypedText("/help\nsecond line"), False),
    (TypedText("/system Be brief.\nBe kind."), True),
])  # fmt: skip
def test_what_is_a_command(entry, is_command):
    """A pasted text may begin with what looks like one, and only /system takes several lines."""
    assert entry.is_command is is_command


@pytest.mark.parametrize(("data", "made"), [
    (b"\xef\xbb\xbfone\r\n\n  \ntwo\nthree", ["one", "two", "three"]),
    (b'"""one\ntwo', [TypedText("one\ntwo", literal=True)]), # which ends with the pipe
    (b"a\x00b\x1bc\n", ["a\x00b\x1bc"]),
])  # fmt: skip
def test_lines_of_a_pipe(data, made):
    assert entries(data) == [
        each if isinstance(each, TypedText) else TypedText(each) for each in made
    ]


def test_bytes_that_are_not_utf8_and_long_lines_are_refused():
    with pytest.raises(InputEncoding, match="line 2 of stdin is not UTF-8 at byte 1"):
        entries(b"one\nt\xe9\n")
    assert next(script_entries(BytesIO(b"1234\r\n"), limit=4)) == TypedText("1234")
    with pytest.raises(InputTooLong, match="line 1"):
        next(script_entries(BytesIO(b"12345\n"), limit=4))


def completed(text):
    found = CommandCompleter().get_completions(Document(text), CompleteEvent())
    return [completion.text for completion in found]


def test_commands_and_file_names_are_completed(tmp_path):
    (tmp_path / "notes.txt").touch()
    assert completed(f"/read {tmp_path}/no") == ["tes.txt"]
    assert completed("/re") == ["regen", "read"]
    assert completed("/set sta") == ["stats"]
    assert completed("/set te") == ["temperature"]
    assert completed("re") == completed("/nothing x") == []


def test_history_is_private_and_can_be_switched_off(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "history"
    monkeypatch.setenv("PYSPEC_CHAT_HISTORY", str(path))
    prompt._history().append_string("hi")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "+hi" in path.read_text()
    monkeypatch.setenv("PYSPEC_CHAT_HISTORY", "")
    prompt._history().append_string("secret")
    assert "secret" not in path.read_text()


def test_a_folder_that_refuses_is_no_reason_not_to_talk(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYSPEC_CHAT_HISTORY", str(tmp_path / "file" / "history"))
    history = prompt._history()
    history.append_string("hi")
    assert history.get_strings() == ["hi"]


def test_a_line_that_no_disk_takes_is_still_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPEC_CHAT_HISTORY", str(tmp_path / "history"))
    history = prompt._history()
    (tmp_path / "history").unlink()
    (tmp_path / "history").mkdir()  # takes no more than a full disk
    history.append_string("hi")
    assert history.get_strings() == ["hi"]


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("PYSPEC_CHAT_HISTORY", "")
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


@pytest.mark.parametrize(("sent", "read"), [
    ('"""one\rtwo"""\r', TypedText("one\ntwo", literal=True)),
    ("\x1b[200~one\ntwo\x1b[201~\r", TypedText("one\ntwo")),
    # from a terminal that marks no paste: lines and tabs stay, and the last newline sends it
    ("def f():\r\treturn 1\r\n/exit\r", TypedText("def f():\n\treturn 1\n\n/exit")),
])  # fmt: skip
def test_an_open_entry_or_a_paste_goes_on(keys, sent, read):
    keys.send_text(sent)
    assert TerminalReader().read() == read


def test_control_c_and_d(keys):
    reader = TerminalReader()
    keys.send_text("half a line\x03")
    with pytest.raises(KeyboardInterrupt):
        reader.read()
    keys.send_text("\x04")
    with pytest.raises(EOFError):
        reader.read()


def test_control_g_opens_the_editor(keys, tmp_path, monkeypatch):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf " and edited" >> "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    keys.send_text("typed\x07")
    reader = TerminalReader()

    def send(buffer):
        if "edited" in buffer.text:
            keys.send_text("\r")

    reader._session.default_buffer.on_text_changed += send
    assert reader.read().text.split() == ["typed", "and", "edited"]
