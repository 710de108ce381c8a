"""The journal of runs: resumed, cut, refused."""

import subprocess

import msgspec
import pytest
from helpers.making import SETUP, record, turn
from measure import records
from measure.records import RunLog, commit, published, read_run_records

from pyspec.errors import InputError, ResumeMismatch


def test_what_was_added_is_there_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    RunLog(path, SETUP).add(record("plain", 1, turn([1, 2])))
    RunLog(path, SETUP).add(record("slow", 1, error="no"))
    again = RunLog(path, msgspec.structs.replace(SETUP, day="2027-01-01"))
    asked = [("plain", 1, 0), ("plain", 1, 1), ("strict", 1, 0), ("slow", 1, 0)]
    assert [again.has(*each) for each in asked] == [True, False, False, False]
    with pytest.raises(ResumeMismatch, match="threads was 1, is 2"):
        RunLog(path, msgspec.structs.replace(SETUP, threads=2))


def test_a_torn_last_line_is_removed(tmp_path):
    path = tmp_path / "runs.jsonl"
    RunLog(path, SETUP).add(record("plain", 1, turn([1, 2])))
    with path.open("ab") as out:
        out.write(b'{"who": "str')
    journal = RunLog(path, SETUP)
    journal.add(record("strict", 1, turn([1, 2])))
    assert [r.who for r in read_run_records(path)] == ["plain", "strict"]


def test_a_foreign_line_is_refused_with_its_number(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(InputError, match="line 1"):
        RunLog(path, SETUP)


def test_a_published_command_names_no_folder():
    words = ["/home/me/t.gguf", "--out=/home/me/r/x.json", "--modes", "margin/gap=1+strict", "a b"]
    said = "pyspec t.gguf --out=x.json --modes margin/gap=1+strict 'a b'"
    assert published("pyspec", words) == said


def test_a_run_after_another_is_of_the_same_commit(tmp_path, monkeypatch):
    """New results change no code; anything else that git knows does, and what it does not know is nobody's."""

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.check_output(["git", "-C", str(tmp_path), *who, *words], text=True)

    code, page = tmp_path / "pyspec" / "records.py", tmp_path / "bench" / "results" / "page.md"
    for file in (code, page):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    monkeypatch.setattr(records, "__file__", str(code))
    git("init", "-q")
    assert commit() == ""
    git("add", ".")
    git("commit", "-qm", "one")
    short = git("rev-parse", "--short", "HEAD").strip()
    assert commit() == short
    page.write_text("2")
    assert commit() == short
    code.write_text("2")
    assert commit() == f"{short}+"
