"""Saved conversations: what is written comes back, and what others wrote is not believed."""

import json
import os
import stat
from pathlib import Path

import pytest
from helpers.fake_chat import FakeModel

from pyspec.chat import files
from pyspec.chat.dialogue import Conversation, Exchange
from pyspec.errors import InputEncoding, InputError, InputTooLong
from pyspec.text.parts import Result

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
    files.save(path, TALK, {"top_k": "7"}, MODEL.target())
    return path


def edited(path, change):
    content = json.loads(path.read_text())
    content["messages"][-1].update(change)
    path.write_text(json.dumps(content))
    return path


def test_round_trip(saved):
    """Messages, seed and settings come back; tokens, which earlier versions wrote too, stay out of prompts."""
    read = files.load(edited(saved, {"tokens": [[2, 0, 0.0, 2]]}))
    assert files.restore(read) == TALK
    assert (read.settings, read.model.name) == ({"top_k": "7"}, "fake")


def test_only_the_owner_reads_it(saved):
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file(saved, monkeypatch):

    def refuse(*_paths):
        raise OSError(28, "No space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InputError, match="No space left"):
        files.save(saved, Conversation(), {}, MODEL.target())
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_other_files_are_not_replaced(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary")
    with pytest.raises(InputError, match="is not a saved chat"):
        files.save(path, TALK, {}, MODEL.target())
    assert path.read_text() == "dear diary"


def test_saved_chats_are_replaced(saved):
    files.save(saved, Conversation(), {}, MODEL.target())
    assert files.load(saved).messages == []


def test_turns_alternate(saved):
    with pytest.raises(InputError, match="message 3 is a system turn"):
        files.restore(files.load(edited(saved, {"role": "system"})))


def test_an_open_question_is_left_out(saved):
    content = json.loads(saved.read_text())
    del content["messages"][-1]
    saved.write_text(json.dumps(content))
    assert files.restore(files.load(saved)) == Conversation("be kind")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"kind":"pyspec-chat","format":2}',
        STRANGE,
    ],
)
def test_what_is_no_saved_chat_is_refused(tmp_path, data):
    path = tmp_path / "talk.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match="is not a saved chat"):
        files.load(path)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (Path.mkdir, InputError, "not a regular file"),
        (os.mkfifo, InputError, "not a regular file"),
        (lambda _: Path("/dev/zero"), InputError, "not a regular file"),
        (lambda _: None, InputError, r"text.*No such file"),
        (lambda path: path.write_bytes(b"one\ntw\xe9\n") and None, InputEncoding, "at byte 6, line 2"),
        (lambda path: path.write_bytes(b"x" * (files.MAX_TEXT + 1)) and None, InputTooLong, "larger"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_read_are_refused(tmp_path, make, error, says):
    """Nothing hangs on a FIFO or reads a device for ever; the place of the first wrong byte is named."""
    path = make(tmp_path / "text") or tmp_path / "text"
    with pytest.raises(error, match=says):
        files.read_text(path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "y" * 255, "x/" * 3000])
def test_names_that_cannot_be_are_one_sentence(name, tmp_path):
    """They ended the chat; a longest name has room for no temporary name beside it."""
    path = tmp_path / name
    for act in (
        lambda: files.save(path, TALK, {}, MODEL.target()),
        lambda: files.load(path),
        lambda: files.read_text(path),
    ):
        if len(name) == 255:
            files.save(path, TALK, {}, MODEL.target())
            assert files.is_there(path)
            continue
        with pytest.raises(InputError):
            act()
