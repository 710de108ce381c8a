"""Files: hashes remembered for one state of them, texts refused with the place, and what is written whole or not at all."""

import hashlib
import os

import pytest

from pyspec.errors import InputEncoding
from pyspec.machine import files
from pyspec.machine.files import file_sha256, parts_of, recall, remember, stamp, utf8, write_whole


@pytest.fixture
def path(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    return tmp_path / "f"


@pytest.fixture
def record(path, own_cache):
    remember("colour", stamp(path), "red")
    (record,) = (own_cache / "facts").iterdir()
    return record


def test_sha256_is_that_of_the_bytes(path):
    path.write_bytes(b"abc" * 700_000)
    assert file_sha256(path) == hashlib.sha256(b"abc" * 700_000).hexdigest()


def test_second_hash_reads_nothing(path, monkeypatch):
    first = file_sha256(path)
    monkeypatch.setattr(files, "hash_of", lambda _: pytest.fail("read again"))
    assert file_sha256(path) == first


def test_same_size_and_new_bytes_are_noticed(path):
    old = file_sha256(path)
    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    assert file_sha256(path) != old


@pytest.mark.usefixtures("record")
def test_fact_belongs_to_one_kind(path):
    assert (recall("colour", stamp(path)), recall("taste", stamp(path))) == ("red", None)


@pytest.mark.parametrize("there", [
    b"", b"{", b"[]", b'{"stamp": 1}', b"null", b"\xff", rb'"\ud800"', b"[" * 100_000, b"5", None,
])  # fmt: skip
def test_damage_is_said_once_and_written_anew(there, path, record, caplog):
    at = stamp(path)
    record.unlink()
    os.mkfifo(record) if there is None else record.write_bytes(there)
    assert [recall("colour", at) for _ in range(2)] == [None, None]
    (said,) = caplog.messages
    assert f"{record} is damaged" in said
    remember("colour", at, "blue")
    assert recall("colour", at) == (None if there is None else "blue")


def test_facts_of_paths_that_are_no_utf8(path):
    at = stamp(path.rename(path.with_name(os.fsdecode(b"\xff"))))
    remember("colour", at, "red")
    assert recall("colour", at) == "red"


@pytest.mark.parametrize("cache", ["{path}/below-a-file", "~nobody-here/x"])
def test_cache_that_cannot_be_written_is_no_error(path, monkeypatch, cache):
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("PYSPEC_CACHE", cache.format(path=path))
    assert file_sha256(path) == hashlib.sha256(b"abc").hexdigest()


def test_text_loses_its_mark_and_its_carriage_returns_or_is_refused():
    assert utf8(b"\xef\xbb\xbfone\r\ntwo", "a.txt") == "one\ntwo"
    with pytest.raises(InputEncoding, match=r"a\.txt is not UTF-8 at byte 4, line 2"):
        utf8(b"one\n\xc3\xff", "a.txt")


def test_file_is_replaced(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old")
    write_whole(path, iter([b"new", b"", b"er"]))
    assert path.read_bytes() == b"newer"
    assert list(tmp_path.iterdir()) == [path]


def test_failure_leaves_the_old_file(tmp_path):
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


def test_a_name_of_very_many_parts_is_a_name(tmp_path):
    """Looking for a hundred thousand files would take as long as somebody likes."""
    few, many = tmp_path / "m-00001-of-00003.gguf", tmp_path / "m-00001-of-99999.gguf"
    assert [len(parts_of(few)), parts_of(many)] == [3, [many]]
