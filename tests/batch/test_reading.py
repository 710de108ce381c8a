"""Inputs: every way they can be good or bad."""

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyspec.batch.reading import Reading, _groups, find_sources, read_records, read_sources
from pyspec.errors import InputError
from pyspec.requests.records import Record, unique


def texts(data, **reading):
    return [r.error.type if r.error else r.prompt for r in records(data, **reading)]


def records(data, **reading):
    return list(read_records(io.BytesIO(data), "in", "text", Reading(**reading)))


HELLO = [{"role": "user", "content": "hi"}]
NOT_IN_BATCHES = ({"logprobs": True}, {"speculation": {"tokens": True}}, {"n": 2}, {"stream": True})
"""What a request to the server may ask for and a batch has no place to answer."""


def jsonl(*lines, **reading):
    data = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    return list(read_records(io.BytesIO(data), "in", "jsonl", Reading(**reading)))


@pytest.mark.parametrize(("data", "expected"), [
    (b"a\nb\n", ["a", "b"]), (b"a\r\nb\r\n", ["a", "b"]), (b"a\nb", ["a", "b"]), (b"\xef\xbb\xbfa\n", ["a"]),
    (b"a\0b\n", ["a\0b"]), (b"\xc3\xa9\xe2\x82\xac\n", ["é€"]), (b"a\n\xff\nb", ["a", "InputEncoding", "b"]),
])  # fmt: skip
def test_lines(data, expected):
    assert texts(data) == expected
    assert texts(data, errors="replace") == [
        each.replace("InputEncoding", "\ufffd") for each in expected
    ]


def test_paragraphs_end_at_blank_lines_and_a_file_is_one_record():
    assert texts(b"a\nb\n\n \nc\r\nd", per="paragraph") == ["a\nb", "c\nd"]
    (record,) = records(b"\xef\xbb\xbfa\r\n\r\nb\n\n", per="file")
    assert (record.id, record.prompt) == ("in", "a\n\nb")


@pytest.mark.parametrize("per", ["line", "paragraph", "file"])
@pytest.mark.parametrize("data", [b"", b"\n\n", b"\n \n\t\n", b"\xef\xbb\xbf"])
def test_an_input_of_nothing_is_a_record_that_fails(data, per):
    """So that it has a line in the output."""
    (record,) = records(data, per=per)
    assert (record.id, record.error.message) == ("in", "in is empty")
    for kind, empty in (("jsonl", b"\n"), ("csv", b"text\n\n")):
        (record,) = read_records(io.BytesIO(empty), "in", kind, Reading())
        assert record.error.type == "InputError"


@pytest.mark.parametrize("per", ["line", "paragraph", "file"])
def test_bad_utf8_names_byte_and_line(per):
    (bad,) = [r for r in records(b"\xef\xbb\xbfab\r\nc\xffd", per=per) if r.error]
    assert bad.error.type == "InputEncoding"
    assert "byte 8, line 2" in bad.error.message


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize(("per", "data"), [
    ("line", b"x" * 10), ("paragraph", b"abc\nabc\nxx"), ("file", b"abc\nabc\nxx"),
])  # fmt: skip
def test_limit_is_inclusive(per, data, end):
    assert texts(data + end, per=per, limit=10) == [data.decode()]
    assert texts(data + b"x" + end, per=per, limit=10) == ["InputTooLong"]


def test_too_long_line_is_skipped_whole_and_never_held():
    found = records(b"a\n" + b"x" * 200_000 + b"\nb", limit=10)
    assert [(r.line, r.prompt) for r in found] == [(1, "a"), (2, None), (3, "b")]

    class Endless(io.RawIOBase):
        largest = read = 0

        def readline(self, size=-1):
            self.largest = max(self.largest, size)
            self.read += size
            return b"x" * size if self.read < 50_000_000 else b""

    stream = Endless()
    (record,) = read_records(stream, "in", "text", Reading(limit=1000))
    assert record.error.type == "InputTooLong"
    assert stream.largest <= 1 << 16


@pytest.mark.parametrize("per", ["paragraph", "file"])
def test_too_many_lines_are_never_held(per):
    (group,) = _groups(io.BytesIO(b"abc\n" * 1000), per, 30)
    assert sum(len(line.data) + 1 for line in group) == 32


def test_template_wraps_the_text_only():
    assert texts(b"a {text} b", template='{"x": {text}}') == ['{"x": a {text} b}']
    with pytest.raises(InputError, match=r"no \{text\}"):
        Reading(template="Summarise.")


def test_jsonl_reads_every_field():
    asked = {"prompt": "p", "system": "s", "max_tokens": 3, "temperature": 0.5, "seed": 1}
    r, chat = jsonl(
        json.dumps({"id": 7, **asked, "stop": "x", "y": [1]}), json.dumps({"messages": HELLO})
    )
    assert {name: getattr(r, name) for name in asked} == asked
    assert (r.id, r.stop, chat.messages) == ("7", ["x"], HELLO)


def test_lines_ask_as_requests_do():
    asked = {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}},
        "top_p": 0, "seed": -1, "max_tokens": -1, "repetition_penalty": 1.2,
        "tools": [{"type": "function", "function": {"name": "f"}}], "reasoning_effort": "none",
        "speculation": {"verify": "margin", "gap": 0.5},
    }  # fmt: skip
    body = {"url": "/v1/chat/completions", "custom_id": "a", "body": {"messages": HELLO, **asked}}
    ours, theirs = jsonl(json.dumps({"messages": HELLO, **asked}), json.dumps(body))
    assert (ours.error, ours.speculation.verify, ours.speculation.gap) == (None, "margin", 0.5)
    theirs.form = ""
    assert ours.sha256 == theirs.sha256
    (prompt,) = jsonl(json.dumps({"prompt": "a", "structured_outputs": {"choice": ["b", "c"]}}))
    assert prompt.language is not None


def test_a_field_that_no_api_has_is_named(caplog):
    """Once: a table's other columns are no mistake, and a slip of a name is seen."""
    jsonl(*['{"prompt": "a", "max_tokns": 5}'] * 2)
    assert sum("max_tokns" in message for message in caplog.messages) == 1


OPENAIS = "/v1/chat/completions"
MISTAKES = [
    *({"prompt": "a", **mistake} for mistake in (
        {"messages": []}, {"max_tokens": -2}, {"suffix": "b"}, {"echo": True}, {"best_of": 2}, {"stop": ""}, *NOT_IN_BATCHES,
    )),
    {"messages": []}, {"messages": [{"role": "user"}]}, {"messages": HELLO, "system": "s"},
    *({"url": OPENAIS, "body": {"messages": HELLO, **more}} for more in ({"stop": ["x"] * 90_000}, *NOT_IN_BATCHES)),
]  # fmt: skip


@pytest.mark.parametrize("line", [
    "{", "[1]", "{}", '{"prompt": 5}', '{"prompt": ""}', '{"prompt": "\\ud800"}', b'{"prompt": "\xff"}',
    '{"x": ' + "[" * 10_000 + "]" * 10_000 + "}", '{"prompt": ' + "[" * 100_000, '{"prompt": "a", "temperature": 1e999}',
    '{"body": {}, "url": "/v1/chat/completions"}', *map(json.dumps, MISTAKES),
])  # fmt: skip
def test_bad_jsonl_fails_that_record_with_its_line(line):
    first, bad, last = jsonl('{"prompt": "a"}', line, '{"prompt": "b"}')
    assert (first.prompt, last.prompt) == ("a", "b")
    assert "line 2" in bad.error.message
    assert "\n" not in bad.error.message


def table(data, column):
    return list(read_records(io.BytesIO(data), "in.csv", "csv", Reading(column=column)))


def test_csv_reads_one_column():
    found = table(b'\xef\xbb\xbfid,text\r\n1,abc\r\n2,"a, ""b""\nc"\r\n3,\r\n4,d\r\n', "text")
    assert [record.prompt for record in found] == ["abc", 'a, "b"\nc', None, "d"]
    assert [record.id for record in found] == [f"in.csv:{line}" for line in (2, 4, 5, 6)]
    assert "line 5: the row has no prompt" in found[2].error.message
    assert [record.line for record in table(b"id,text\n\n,\n1,a\n", "text")] == [4]  # empty rows


def test_the_only_column_need_not_be_named(caplog):
    assert [record.prompt for record in table(b"question\na\nb\n", None)] == ["a", "b"]
    assert "'question' is taken as the name" in caplog.text
    caplog.clear()
    table(b"question\na\nb\n", "question")
    assert not caplog.text


def test_a_line_of_openais_without_a_body_keeps_its_id(caplog):
    (record,) = jsonl('{"custom_id": "a", "url": "/v1/chat/completions"}')
    assert (record.id, record.form) == ("a", "chat")
    assert "no body" in record.error.message
    assert not caplog.text


def read(path, **options):
    return list(read_sources(find_sources([str(path)]), Reading(**options)))


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl", "in.md"])
def test_a_column_of_what_has_none_is_refused(tmp_path, name):
    """It would be left out in silence, and lines be read as prompts."""
    (tmp_path / name).write_text("id,question\n1,a\n")
    with pytest.raises(InputError, match=r"--column is for CSV files, and .*in\."):
        read(tmp_path / name, column="question")


def test_a_column_of_a_table_on_stdin(monkeypatch):
    data = io.BytesIO(b"id,question\n1,a\n2,b\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=data))
    assert [record.prompt for record in read("-", column="question")] == ["a", "b"]


def test_json_is_no_file_of_lines(tmp_path):
    """An array would be answered line by line, brackets and all; as one text it can be meant."""
    (tmp_path / "prompts.json").write_text('[\n"a",\n"b"\n]\n')
    with pytest.raises(InputError, match="jq"):
        read(tmp_path / "prompts.json")
    assert len(read(tmp_path / "prompts.json", per="file")) == 1


@pytest.mark.parametrize(("data", "column", "says"), [
    (b'text\n"abc', "text", "line"), (b"text\n" + b"x" * 2_000_000, "text", "line"), (b"text\n\xff\n", "text", "line"),
    (b"id,text\n1,abc\n", None, "id, text"), (b"id,text\n1,abc\n", "prompt", "id, text"),
    (b"", None, "no header row"), (b"\n", None, "no header row"), (b"\xef\xbb\xbf", None, "no header row"),
    (b"a,b,a\n1,2,3\n", "a", "2 columns named 'a'"),
])  # fmt: skip
def test_csv_that_is_broken_or_without_its_column_is_refused(data, column, says):
    with pytest.raises(InputError, match=says):
        table(data, column)
    assert len(table(b"a,b,a\n1,2,3\n", "b")) == 1


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "b.txt").write_text("b\n")
    (tmp_path / "in" / "a.md").write_text("a\n")
    (tmp_path / "in" / "sub" / "c.jsonl").write_text('{"prompt": "c"}\n')
    (tmp_path / "in" / "x.png").write_bytes(b"\x89PNG")
    (tmp_path / "in" / ".hidden.txt").write_text("h\n")
    return tmp_path / "in"


def below(inputs):
    return [source.below for source in find_sources([str(i) for i in inputs])]


@pytest.mark.parametrize(("names", "found"), [
    ([""], ["a.md", "b.txt", "sub/c.jsonl"]), (["*.*t*"], ["b.txt"]),
    (["b.txt", "", "b*"], ["b.txt", "a.md", "sub/c.jsonl"]), # each once
])  # fmt: skip
def test_a_folder_gives_its_text_files_sorted_and_a_glob_is_expanded(folder, names, found):
    assert below([folder / name for name in names]) == found


def test_what_a_folder_has_besides_is_counted(folder, caplog):
    (folder / "sub" / ".git").mkdir()
    (folder / "sub" / ".git" / "a.txt").touch()
    below([folder])
    (said,) = caplog.messages
    assert said.startswith(
        f"3 others in {folder} are skipped (files are read whose names end with .txt"
    )


@pytest.mark.parametrize("name", ["missing.txt", "no*match", "empty", "pipe"])
def test_what_is_no_text_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    if name == "pipe":
        os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=name.replace("*", ".")):
        find_sources([str(tmp_path / name)])


def test_ids_are_unique_over_files(folder):
    records = list(read_sources(find_sources([str(folder)]), Reading()))
    assert [record.prompt for record in records] == ["a", "b", "c"]
    assert len({record.id for record in records}) == 3


def test_name_that_is_not_utf8_is_escaped(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.txt"
    Path(os.fsdecode(path)).write_bytes(b"a")
    (record,) = read_sources(find_sources([os.fsdecode(path)]), Reading())
    assert record.id.endswith("\\xff.txt:1")


def test_second_record_with_an_id_fails():
    names = enumerate(("a", "a", "in:2"), start=1)
    records = [Record(id=name, prompt="x", source="in", line=i) for i, name in names]
    first, second, third = unique(records)
    assert (first.id, first.error) == ("a", None)
    assert second.error is not None
    assert len({first.id, second.id, third.id}) == 3


def test_hash_is_of_what_is_asked():
    a, b = Record(id="1", prompt="x", line=1), Record(id="2", prompt="x", line=2)
    assert a.sha256 == b.sha256 != Record(id="1", prompt="x", seed=1).sha256
