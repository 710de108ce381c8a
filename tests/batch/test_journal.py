"""The journal: whole records, torn tails, locks, full disks."""

import errno
import os
import resource

import pytest
from helpers.running import start

from pyspec.batch.journal import Journal
from pyspec.errors import BatchWriteError, ResumeMismatch
from pyspec.text.parts import RecordResult

RUN = {"target": "t", "max_tokens": "5"}


def result(index, text="text"):
    return RecordResult(index=index, id=f"r{index}", prompt_sha256="0" * 64, text=text)


def key(index):
    return f"r{index}", "0" * 64


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.journal"


@pytest.fixture
def written(path):
    journal = Journal(path, RUN)
    for i in (2, 0, 1):
        journal.append(result(i, f"text {i}\n"))
    journal.close()
    return path.read_bytes()


@pytest.mark.usefixtures("written")
def test_finished_records_are_there_again(path):
    journal = Journal(path, RUN)
    assert sorted(journal.places) == [key(i) for i in range(3)]
    assert [journal.read(key(i)).text for i in range(3)] == ["text 0\n", "text 1\n", "text 2\n"]
    journal.close()
    assert path.stat().st_mode & 0o777 == 0o600  # prompts and answers are nobody else's business


def test_every_cut_is_recovered(path, written):
    ends = [i + 1 for i, byte in enumerate(written) if byte == 10]
    for cut in range(len(written)):
        path.write_bytes(written[:cut])
        journal = Journal(path, RUN)
        assert len(journal.places) == max(0, sum(end <= cut for end in ends) - 1)
        journal.append(result(7))
        assert journal.read(key(7)) == result(7)
        journal.close()


def test_zeros_after_a_power_cut_are_cut_off(path, written):
    """A tail of NUL bytes, which some file systems leave, is no record."""
    path.write_bytes(written + b"\0" * 100 + b"\n")
    journal = Journal(path, RUN)
    assert len(journal.places) == 3
    journal.close()
    assert path.read_bytes() == written


@pytest.mark.parametrize("key", ["target", "max_tokens"])
def test_other_run_is_refused_by_name(path, written, key):
    with pytest.raises(ResumeMismatch, match=f"other {key}"):
        Journal(path, {**RUN, key: "other"})
    assert path.read_bytes() == written


@pytest.mark.parametrize("data", [b"hello", b"hello\n", b"{}\n", b'{"pyspec_batch":\n'])
def test_foreign_file_is_refused_and_kept(path, data):
    path.write_bytes(data)
    with pytest.raises((BatchWriteError, ResumeMismatch)):
        Journal(path, RUN)
    assert path.read_bytes() == data


def test_link_is_not_followed_and_a_folder_must_be_one(path, tmp_path):
    (tmp_path / "precious").write_text("")
    path.symlink_to(tmp_path / "precious")
    below = tmp_path / "precious" / "out.journal"
    for wrong, said in ((path, "symbolic link"), (below, "cannot be written")):
        with pytest.raises(BatchWriteError, match=said):
            Journal(wrong, RUN)
    assert (tmp_path / "precious").read_text() == ""


def test_second_writer_is_refused(path):
    journal = Journal(path, RUN)
    with start(begin=lambda _words: Journal(path, RUN)) as second:
        assert "another process is writing" in second.ended().stderr
    journal.close()
    with start(begin=lambda _words: Journal(path, RUN)) as third:
        assert third.wait() == 0


@pytest.mark.parametrize("into", [0, 1, 60, 99])
def test_disk_full_keeps_whole_records(path, written, file_limit, into):
    journal = Journal(path, RUN)
    file_limit(len(written) + into)
    with pytest.raises(BatchWriteError, match="3 records are kept"):
        journal.append(result(3))
    assert path.read_bytes() == written
    file_limit(resource.RLIM_INFINITY)
    journal.append(result(3))
    assert journal.read(key(3)) == result(3)
    journal.close()


def test_failing_sync_is_reported(path, monkeypatch):
    journal = Journal(path, RUN)

    def fail(_fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BatchWriteError, match="Input/output error"):
        journal.sync()
    journal.close()


def test_records_are_flushed_once_a_second(path, monkeypatch):
    """With each one, an answer would wait for the disk."""
    now, flushed = [0.0], []
    monkeypatch.setattr("pyspec.batch.journal.monotonic", lambda: now[0])
    journal = Journal(path, RUN)
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append(now[0]))
    for i, now[0] in enumerate((0.0, 0.4, 0.9, 1.2, 1.6, 2.0, 2.4)):
        journal.append(result(i))
    journal.close()
    assert flushed == [1.2, 2.4]
