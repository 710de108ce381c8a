"""Journals of several writers in one folder."""

from __future__ import annotations

import pytest

from pyspec.cluster.shards import JournalFolder
from pyspec.errors import ResumeMismatch
from pyspec.requests.records import Record
from pyspec.text.result import Failure, RecordResult

RUN = {"target": "t"}


def finished(record, text="", error=None):
    return RecordResult(index=7, id=record.id, prompt_sha256=record.sha256, text=text, error=error)


@pytest.fixture
def records():
    return [Record(id=name, prompt=name) for name in "ab"]


def test_what_one_writer_finished_another_finds(tmp_path, records):
    """While the first still writes: what it finished, under the place that is asked for, and not what failed."""
    one = JournalFolder(tmp_path, RUN)
    one.append(finished(records[0], "A"))
    one.append(finished(records[1], error=Failure("InputError", "bad")))
    other = JournalFolder(tmp_path, RUN)
    found = other.find(3, records[0])
    assert found is not None
    assert (found.index, found.text) == (3, "A")
    assert other.find(4, records[1]) is None


def test_a_folder_of_another_run_is_refused(tmp_path):
    JournalFolder(tmp_path, RUN).close()
    with pytest.raises(ResumeMismatch, match="target"):
        JournalFolder(tmp_path, {"target": "other"})
