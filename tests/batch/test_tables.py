"""CSV in, CSV out: rows and columns stay, answers stand beside them."""

from __future__ import annotations

import csv
import io

import pytest
from fake_batch import Fake, go

from pyspec.errors import InputError, ResumeMismatch

__all__ = ["go"]

TABLE = 'id,question,note\n7,a,"one, two"\n8,,nothing asked\n9,"b\nc",x\n10,bad,\n'


def rows(path):
    """The rows of a CSV file."""
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))


@pytest.fixture
def table(tmp_path):
    """Four rows: one without a question, one of two lines, one that fails."""
    (tmp_path / "in.csv").write_text(TABLE)
    return "in.csv"


def test_rows_and_columns_are_kept(go, table, tmp_path):
    """In their order, with the answer, its end and its error behind them; a row that asks nothing stays, too."""
    go([table], "out.csv", column="question")
    head, *found = rows(tmp_path / "out.csv")
    assert head == ["id", "question", "note", "answer", "finish_reason", "error"]
    assert found == [
        ["7", "a", "one, two", "A", "", ""],
        ["8", "", "nothing asked", "", "", "InputError: this row has no prompt"],
        ["9", "b\nc", "x", "B\nC", "", ""],
        ["10", "bad", "", "", "", "InputError: bad"],
    ]


def test_columns_of_the_same_names_stay(go, tmp_path):
    """Ours get others then."""
    (tmp_path / "in.csv").write_text("question,answer\na,mine\n")
    go(["in.csv"], "out.csv", column="question")
    head, row = rows(tmp_path / "out.csv")
    assert head == ["question", "answer", "pyspec_answer", "finish_reason", "error"]
    assert row[1:3] == ["mine", "A"]


def test_other_inputs_give_a_table_of_ids(go, tmp_path):
    """Lines have no columns to keep."""
    (tmp_path / "in.txt").write_text("a\nbad\n")
    go(["in.txt"], "out.csv")
    assert rows(tmp_path / "out.csv") == [
        ["id", "answer", "finish_reason", "error"],
        [f"{tmp_path}/in.txt:1", "A", "", ""],
        [f"{tmp_path}/in.txt:2", "", "", "InputError: bad"],
    ]


def test_an_interrupted_run_goes_on(go, table, tmp_path):
    """What was answered is not answered again, nor is anything once all is there."""
    with pytest.raises(KeyboardInterrupt):
        go([table], "out.csv", column="question", stop_after=1)
    fake, summary = go([table], "out.csv", column="question")
    assert (len(fake.asked), summary.kept) == (2, 1)
    before = (tmp_path / "out.csv").read_bytes()
    fake, _ = go([table], "out.csv", column="question")
    assert fake.asked == []
    assert (tmp_path / "out.csv").read_bytes() == before


def test_a_table_of_others_is_not_replaced(go, table, tmp_path):
    """But where that is asked for."""
    (tmp_path / "out.csv").write_text("precious\n")
    with pytest.raises(ResumeMismatch):
        go([table], "out.csv", column="question")
    assert (tmp_path / "out.csv").read_text() == "precious\n"
    go([table], "out.csv", column="question", overwrite=True)
    assert len(rows(tmp_path / "out.csv")) == 5


def test_tables_with_other_columns_do_not_go_into_one(go, table, tmp_path):
    """Before anything is answered."""
    (tmp_path / "other.csv").write_text("question\nz\n")
    fake = Fake()
    with pytest.raises(InputError, match="other columns"):
        go([table, "other.csv"], "out.csv", column="question", fake=fake)
    assert fake.asked == []
