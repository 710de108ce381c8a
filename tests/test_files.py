"""Files: texts are UTF-8 or refused with the place, and what is written is there whole or not at all."""

from __future__ import annotations

import os

import pytest

from pyspec.errors import InputEncoding
from pyspec.files import utf8, write_whole


def test_text_loses_its_mark_and_its_carriage_returns():
    """As editors of other systems write it."""
    assert utf8(b"\xef\xbb\xbfone\r\ntwo", "a.txt") == "one\ntwo"


def test_bytes_that_are_no_text_are_refused_with_their_place():
    """By byte and by line."""
    with pytest.raises(InputEncoding, match=r"a\.txt is not UTF-8 at byte 4, line 2"):
        utf8(b"one\n\xc3\xff", "a.txt")


def test_file_is_replaced(tmp_path):
    """All chunks, one after another, and nothing else in the folder."""
    path = tmp_path / "out"
    path.write_bytes(b"old")
    write_whole(path, iter([b"new", b"", b"er"]))
    assert path.read_bytes() == b"newer"
    assert list(tmp_path.iterdir()) == [path]


def test_failure_leaves_the_old_file(tmp_path):
    """Also one in the middle of the content; the temporary file is gone."""
    path = tmp_path / "out"
    path.write_bytes(b"old")

    def chunks():
        yield b"ne"
        raise OSError(28, "no space")

    with pytest.raises(OSError, match="no space"):
        write_whole(path, chunks())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_keeps_its_name(tmp_path):
    """As a device would: it is somebody's, and no file to be replaced."""
    os.mkfifo(tmp_path / "out")
    with pytest.raises(OSError, match="not a regular file"):
        write_whole(tmp_path / "out", [b"new"])
    assert (tmp_path / "out").is_fifo()
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
