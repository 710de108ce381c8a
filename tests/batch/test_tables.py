"""CSV in, CSV out: rows and columns stay, answers stand beside them."""

import csv
import io

import pytest
from helpers.fake_batch import Fake
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.batch.output import _row
from pyspec.batch.reading import Reading, rows_of
from pyspec.errors import InputError

TABLE = 'id,question,note\n7,a,"one, two"\n8,,nothing asked\n9,"b\nc",x\n10,bad,\n'


def rows(path):
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))


@pytest.fixture
def table(tmp_path):
    (tmp_path / "in.csv").write_text(TABLE)
    return "in.csv"


def test_rows_and_columns_are_kept(go, table, tmp_path):
    _, summary = go([table], "out.csv", column="question")
    assert summary.failed == 2  # so that the command's exit status says it
    head, *found = rows(tmp_path / "out.csv")
    assert head == ["id", "question", "note", "answer", "finish_reason", "error"]
    found[1][5] = found[1][5].replace(str(tmp_path), "IN").replace("IN/in.csv", "IN")
    assert found == [
        ["7", "a", "one, two", "A", "stop", ""],
        ["8", "", "nothing asked", "", "", "InputError: IN, line 3: the row has no prompt"],
        ["9", "b\nc", "x", "B\nC", "stop", ""],
        ["10", "bad", "", "", "", "InputError: bad"],
    ]


def test_a_table_without_rows_has_one_for_its_error(go, table, tmp_path):
    (tmp_path / "empty.csv").write_text(TABLE.splitlines()[0])
    go([table, "empty.csv"], "out.csv", column="question")
    *_, last = rows(tmp_path / "out.csv")
    assert last == [*[""] * 5, f"InputError: {tmp_path}/empty.csv has no rows"]


def test_columns_of_the_same_names_stay(go, tmp_path):
    (tmp_path / "in.csv").write_text("question,answer\na,mine\n")
    go(["in.csv"], "out.csv", column="question")
    head, row = rows(tmp_path / "out.csv")
    assert head == ["question", "answer", "pyspec_answer", "finish_reason", "error"]
    assert row[1:3] == ["mine", "A"]


def test_a_table_of_tabs_is_known_by_its_name(go, tmp_path):
    (tmp_path / "in.tsv").write_text("a,b\tquestion, please\n1,2\ta, b\n")
    go(["in.tsv"], "out.csv", column="question, please")
    assert rows(tmp_path / "out.csv")[1][:3] == ["1,2", "a, b", "A, B"]


def test_other_inputs_give_a_table_of_ids(go, tmp_path):
    """Lines have no columns to keep."""
    (tmp_path / "in.txt").write_text("a\nbad\n")
    go(["in.txt"], "out.csv")
    assert rows(tmp_path / "out.csv") == [
        ["id", "answer", "finish_reason", "error"],
        [f"{tmp_path}/in.txt:1", "A", "stop", ""],
        [f"{tmp_path}/in.txt:2", "", "", "InputError: bad"],
    ]


def test_tables_with_other_columns_do_not_go_into_one(go, table, tmp_path):
    (tmp_path / "other.csv").write_text("question\nz\n")
    fake = Fake()
    with pytest.raises(InputError, match="other columns"):
        go([table, "other.csv"], "out.csv", column="question", fake=fake)
    assert fake.asked == []


@pytest.mark.parametrize(("text", "line"), [
    ("question\nHello, who are you?\n", 2), ("id,question\n1,a\n2,Well, why?\n", 3),
    ('id,question\n1,"a\nb"\n2,"c",d\n', 4), ("id;question\n1;a;b\n", 2),
])  # fmt: skip
def test_a_row_longer_than_the_head_is_refused(text, line):
    """Nothing says which column its cells belong to, and none is dropped."""
    with pytest.raises(InputError, match=f"line {line}: . cells under . column"):
        read(text.encode())


def read(data, **how):
    return [row for _, row in rows_of(io.BytesIO(data), "in.csv", Reading(**how))]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_what_separates_cells_is_found(delimiter):
    text = "\n".join(map(delimiter.join, (["id", "question"], ["1", '"Well, why; or | not?"'])))
    assert read(text.encode()) == [["id", "question"], ["1", "Well, why; or | not?"]]


def test_the_rows_decide_where_the_head_has_two_that_may_separate():
    assert read(b"a;b,c\n1;2\n") == [["a", "b,c"], ["1", "2"]]
    with pytest.raises(InputError, match="may separate"):
        read(b"a;b,c\n")


CELLS = st.text(st.characters(codec="utf-8") | st.sampled_from('",;\t|\r\n \0\ufeff'), max_size=8)


ROW_COUNTS = st.integers(1, 4)


@settings(max_examples=200)
@given(
    ROW_COUNTS.flatmap(
        lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=5)
    )
)
def test_any_table_is_read_back(table):
    data = b"".join(map(_row, table))
    assert list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True)) == table
    head = [f"column {i}" for i in range(len(table[0]))]
    assert read(_row(head) + data) == [head, *table]
