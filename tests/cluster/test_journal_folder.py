"""Journals of several workers in one folder."""

from __future__ import annotations

import pytest

from pyspec.cluster.batch import JournalFolder
from pyspec.errors import ResumeMismatch
from pyspec.requests.records import Record
from pyspec.text.result import Failure, RecordResult

RUN = {"target": "t"}


def finished(record, text="", error=None):
    return RecordResult(index=7, id=record.id, prompt_sha256=record.sha256, text=text, error=error)


def test_what_one_worker_answered_another_finds(tmp_path):
    """While the first still writes, and not what failed."""
    records = [Record(id=name, prompt=name) for name in "ab"]
    one = JournalFolder(tmp_path, RUN)
    one.append(finished(records[0], "A"))
    one.append(finished(records[1], error=Failure("InputError", "bad")))
    other = JournalFolder(tmp_path, RUN)
    assert other.find(records[0]).text == "A"
    assert other.find(records[1]) is None


def test_a_folder_of_another_run_is_refused(tmp_path):
    JournalFolder(tmp_path, RUN).close()
    with pytest.raises(ResumeMismatch, match="target"):
        JournalFolder(tmp_path, {"target": "other"})
