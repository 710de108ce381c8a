"""Entries: messages of many lines, commands, bytes from a pipe, completion."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from pyspec.chat import prompt
from pyspec.chat.prompt import CommandCompleter, Entry, StreamReader, entry, is_open
from pyspec.errors import InputEncoding, InputTooLong


def entries(data: bytes) -> list[Entry]:
    reader, found = StreamReader(BytesIO(data)), []
    try:
        while True:
            found.append(reader.read())
    except EOFError:
        return found


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ("hi", False),
        ("hi\\", True),
        ("hi\\\nyou", False),
        ('"""', True),
        ('"""one\ntwo', True),
        ('"""one\ntwo"""', False),
        ('"""one"""', False),
        ('say """', False),
    ],
)
def test_is_open(text: str, open_: bool) -> None:
    """Quotes at the beginning and backslashes at the end hold an entry open."""
    assert is_open(text) is open_


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("hi ", Entry("hi")),
        ("a\\\nb", Entry("a\nb")),
        ("a\\", Entry("a")),
        ('"""\n  a\n\nb\n"""', Entry("  a\n\nb", literal=True)),
        ('"""/help"""', Entry("/help", literal=True)),
        ('"""never closed', Entry("never closed", literal=True)),
    ],
)
def test_entry(text: str, made: Entry) -> None:
    """The marks of many lines are taken away, and nothing else but blanks at the end."""
    assert entry(text) == made


def test_quoted_commands_are_messages() -> None:
    """A slash is a command at the very beginning of an unquoted entry only."""
    assert entry("/help").is_command
    assert not entry('"""/help"""').is_command
    assert not entry(" /help").is_command


def test_lines_of_a_pipe() -> None:
    """CRLF is LF, a BOM is dropped, blank lines are left out, the last line needs no end."""
    assert entries(b"\xef\xbb\xbfone\r\n\n  \ntwo\\\nthree\nfour") == [
        Entry("one"),
        Entry("two\nthree"),
        Entry("four"),
    ]


def test_an_entry_may_end_with_the_pipe() -> None:
    """What was opened and never closed is taken as it is."""
    assert entries(b'"""one\ntwo') == [Entry("one\ntwo", literal=True)]


def test_nul_and_control_bytes_pass() -> None:
    """What a user pipes in is the user's text."""
    assert entries(b"a\x00b\x1bc\n") == [Entry("a\x00b\x1bc")]


def test_bytes_that_are_not_utf8_are_named() -> None:
    """The line and the byte are in the sentence."""
    with pytest.raises(InputEncoding, match="line 2 of stdin is not UTF-8 at byte 1"):
        entries(b"one\nt\xe9\n")


def test_long_lines_are_refused() -> None:
    """A line is read no further than its limit."""
    assert StreamReader(BytesIO(b"1234\r\n"), limit=4).read() == Entry("1234")
    with pytest.raises(InputTooLong, match="line 1"):
        StreamReader(BytesIO(b"12345\n"), limit=4).read()


def completed(text: str) -> list[str]:
    found = CommandCompleter().get_completions(Document(text), CompleteEvent())
    return [completion.text for completion in found]


def test_commands_are_completed() -> None:
    """Names after the slash, words after the name; a message is left alone."""
    assert completed("/re") == ["regen", "read"]
    assert completed("/show to") == ["tokens"]
    assert completed("/set te") == ["temp"]
    assert completed("re") == []
    assert completed("/nothing x") == []


def test_file_names_are_completed(tmp_path: Path) -> None:
    """Where a command takes a file, the folder's names are offered."""
    (tmp_path / "notes.txt").touch()
    assert completed(f"/read {tmp_path}/no") == ["tes.txt"]


def test_history_is_private_and_can_be_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the owner's alone; an empty variable keeps nothing."""
    path = tmp_path / "deep" / "history"
    monkeypatch.setenv(prompt.HISTORY, str(path))
    prompt._history().append_string("hi")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "+hi" in path.read_text()
    monkeypatch.setenv(prompt.HISTORY, "")
    prompt._history().append_string("secret")
    assert "secret" not in path.read_text()


def test_a_folder_that_refuses_is_no_reason_not_to_talk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a place for the history there is none."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(prompt.HISTORY, str(tmp_path / "file" / "history"))
    history = prompt._history()
    history.append_string("hi")
    assert history.get_strings() == ["hi"]
