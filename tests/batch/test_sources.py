"""Inputs: files, folders, globs, in a fixed order, each once."""

import os
from pathlib import Path

import pytest

from pyspec.batch.reading import Reading, find_sources, read_sources
from pyspec.errors import InputError


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


def test_folder_gives_its_text_files_sorted(folder):
    assert below([folder]) == ["a.md", "b.txt", "sub/c.jsonl"]


def test_what_a_folder_has_besides_is_named(folder, caplog):
    (folder / "sub" / ".git").mkdir()
    for name in "ab":
        (folder / "sub" / ".git" / name).touch()
    below([folder])
    assert caplog.messages == [f"skipped in {folder}: .hidden.txt, sub/.git, x.png"]
    caplog.clear()
    for i in range(6):
        (folder / f"{i}.pdf").touch()
    below([folder])
    (said,) = caplog.messages
    assert said.endswith(": .hidden.txt, 0.pdf, 1.pdf, 2.pdf, 3.pdf and 4 more")


def test_glob_is_expanded(folder):
    assert below([folder / "*.*t*"]) == ["b.txt"]


def test_file_is_read_once(folder):
    assert below([folder / "b.txt", folder, folder / "b*"]) == ["b.txt", "a.md", "sub/c.jsonl"]


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
