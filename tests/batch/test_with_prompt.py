"""Lines that say what was asked, where that is wanted."""

import json

import pytest

from pyspec.errors import InputError

TURNS = [{"role": "user", "content": "a"}]
SHOWN = {"prompts": True}


@pytest.fixture
def two(tmp_path):
    """A prompt, and a line that cannot be read."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "abc"}\n{bad\n')
    return ["in.jsonl"]


def test_prompts_stand_in_the_lines(go, two, tmp_path):
    """Where they could be read."""
    go(two, "out.jsonl", lines=SHOWN)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line.get("prompt") for line in found] == ["abc", None]
    assert found[0]["text"] == "ABC"


def test_a_finished_file_with_prompts_is_known_again(go, two):
    go(two, "out.jsonl", lines=SHOWN)
    fake, _ = go(two, "out.jsonl", lines=SHOWN)
    assert fake.asked == []


def test_prompts_are_added_to_a_finished_file(go, two, tmp_path):
    go(two, "out.jsonl")
    fake, _ = go(two, "out.jsonl", lines=SHOWN)
    assert fake.asked == []
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["prompt"] == "abc"


@pytest.mark.parametrize("out", ["out.csv", "out/"])
def test_other_outputs_have_no_place_for_prompts(go, two, out):
    with pytest.raises(InputError, match="--with-prompt"):
        go(two, out, lines=SHOWN)
