"""A file is replaced whole or not at all."""

from __future__ import annotations

import pytest

from pyspec.atomic import write_whole


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
