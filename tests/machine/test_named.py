"""Files that users name: regular ones of a limited size, at every place that opens one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from measure.questions import load_questions
from measure.simulate import load_rounds

from pyspec.cli.generate import prompt_text
from pyspec.errors import PyspecError
from pyspec.machine.files import read_named, read_text
from pyspec.text.render import choose

READERS: dict[str, Callable[[Path], object]] = {
    "chat template": lambda path: choose({}, str(path)),
    "grammar": read_text,
    "prompt": lambda path: prompt_text(None, path, 100),
    "questions": load_questions,
    "rounds": load_rounds,
}


@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices_are_refused(reader, tmp_path):
    """They would be read without end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(PyspecError, match="regular file"):
            READERS[reader](path)


@pytest.mark.parametrize("reader", ["chat template", "grammar", "questions"])
def test_a_huge_file_is_refused(reader, tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(PyspecError, match="larger"):
        READERS[reader](tmp_path / "huge")


def test_a_file_of_the_largest_size_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert read_named(tmp_path / "a", 3) == b"abc"
    with pytest.raises(OSError, match="larger than 2"):
        read_named(tmp_path / "a", 2)
