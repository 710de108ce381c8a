"""Files that a chat reads, and paths that a terminal writes for dropped ones."""

import pytest
from helpers.fake_chat import FakeModel, session

from pyspec.chat.commands import unquoted


def test_read_goes_in_front_of_the_next_message(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\n")
    model = FakeModel(["one"])
    _, text = session(model, f"/read {path}\nwhat is this?\nand now?\n")
    assert text == f"13 characters of {path} will precede the next message\none\none\n"
    question = "first\nsecond\n\n\nwhat is this?"
    assert model.asked[0].prompt == model.prompt([{"role": "user", "content": question}])
    assert bytes(model.asked[1].prompt).count(b"first") == 1


def test_a_file_dropped_into_the_terminal_is_explained(tmp_path):
    """A path is no command, and pictures are no text."""
    path = tmp_path / "notes.txt"
    path.write_text("x")
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    _, text = session(FakeModel(["one"]), f"{path}\n{picture}\n/read {picture}\n")
    lines = text.splitlines()
    assert "/read FILE" in lines[0]
    assert all("a picture cannot be read as text" in line for line in lines[1:])
    assert len(lines) == 3


@pytest.mark.parametrize(
    "written", ["{}/My File's.txt", "{}/My\\ File\\'s.txt", '"{}/My File\'s.txt"']
)
def test_a_dropped_file_is_read_as_the_terminal_writes_it(tmp_path, written):
    (tmp_path / "My File's.txt").write_text("x")
    _, text = session(FakeModel(["one"]), f"/read {written.format(tmp_path)}\n")
    assert text == f"1 character of {tmp_path}/My File's.txt will precede the next message\n"


def test_a_dropped_file_with_spaces_is_explained(tmp_path):
    (tmp_path / "My File.txt").write_text("x")
    _, text = session(FakeModel(["one"]), f"{tmp_path}/My\\ File.txt\n")
    assert "that is the path of a file" in text


def test_a_name_that_is_there_as_it_is_written_stays(tmp_path):
    """Backslashes and quotes may be its own."""
    path = tmp_path / "a\\ 'b'.txt"
    path.write_text("x")
    assert unquoted(str(path)) == str(path)
