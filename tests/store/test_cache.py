"""Hashes and other facts about files, remembered for one state of the file."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from pyspec.errors import ModelNotFound
from pyspec.store import cache
from pyspec.store.cache import file_sha256, recall, remember, stamp

if TYPE_CHECKING:
    from pathlib import Path


def test_sha256_is_that_of_the_bytes(tmp_path: Path) -> None:
    """The hash equals hashlib's over the whole file, also for files longer than one chunk."""
    path = tmp_path / "f"
    path.write_bytes(b"abc" * 700_000)
    assert file_sha256(path) == hashlib.sha256(b"abc" * 700_000).hexdigest()


def test_second_hash_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged file is not read again."""
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    first = file_sha256(path)

    def refuse(_: Path) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr(cache, "_hash", refuse)
    assert file_sha256(path) == first


def test_same_size_and_new_bytes_are_noticed(tmp_path: Path) -> None:
    """A rewritten file of the same size has another modification time and is hashed again."""
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    old = file_sha256(path)
    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    assert file_sha256(path) != old


def test_fact_belongs_to_one_kind(tmp_path: Path) -> None:
    """Facts of one kind are not given out for another."""
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    remember("colour", stamp(path), "red")
    assert (recall("colour", stamp(path)), recall("taste", stamp(path))) == ("red", None)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stamp": 1}', "null", "[" * 100_000])
def test_damaged_record_is_forgotten(content: str, tmp_path: Path, own_cache: Path) -> None:
    """A torn or foreign record counts as none."""
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    remember("colour", stamp(path), "red")
    (record,) = (own_cache / "facts").iterdir()
    record.write_text(content)
    assert recall("colour", stamp(path)) is None


def test_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a usable cache folder the hash is found all the same."""
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    monkeypatch.setenv("PYSPEC_CACHE", str(path / "below-a-file"))
    assert file_sha256(path) == hashlib.sha256(b"abc").hexdigest()


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is ModelNotFound."""
    with pytest.raises(ModelNotFound, match="absent"):
        file_sha256(tmp_path / "absent")
