"""Shards of written text: what is kept, and that computing it again gives what was recorded."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from models.recipe import text, write
from models.recipe.rows import Recording
from pyspec.errors import TrainingError

ORIGIN = text.Origin("ab", 1, 320)
ANSWERS = st.builds(
    text.Answer,
    st.integers(0, 1 << 40),
    st.lists(st.integers(0, 65535), max_size=20).map(lambda ids: np.array(ids, np.uint16)),
    st.floats(0, 2, width=32),
    st.booleans(),
)


@settings(max_examples=30)
@given(answers=st.lists(ANSWERS, max_size=8))
def test_a_shard_gives_back_what_was_kept(tmp_path_factory, answers):
    path = tmp_path_factory.mktemp("shard") / "t.xz"
    text.save(path, ORIGIN, answers)
    origin, found = text.load(path)
    assert origin == ORIGIN
    assert [(a.source, a.ids.tolist(), a.temperature, a.ended) for a in found] == [
        (a.source, a.ids.tolist(), a.temperature, a.ended) for a in answers
    ]


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_damaged_shard_is_one_sentence(tmp_path, cut):
    path = tmp_path / "t.xz"
    ids = np.arange(300, dtype=np.uint16)
    text.save(path, ORIGIN, [text.Answer(1, ids, 0.0, True)])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(TrainingError, match="is not a shard of text"):
        text.load(path)


def test_large_vocabularies_are_refused(tmp_path):
    with pytest.raises(TrainingError, match="do not fit"):
        text.save(tmp_path / "t.xz", text.Origin("", 1, 128_256), [])


def keep(recording, prompt_file, out):
    arguments = ["--data", str(recording), "--prompts", str(prompt_file), "--out", str(out)]
    result = CliRunner().invoke(text.main, arguments)
    assert result.exit_code == 0, result.output


def test_a_shard_computed_again_is_the_recording(tiny_target, prompt_file, tmp_path):
    paths = ["--target", str(tiny_target), "--prompts", str(prompt_file)]
    sizes = ["--slots", "4", "--answer", "12", "--top", "16", "--threads", "1", "--layers", "0,1,2"]
    more = [*paths, *sizes, "--warm", "0.5", "--tokens", "200"]
    first, again = tmp_path / "first", tmp_path / "again"
    assert CliRunner().invoke(write.main, [*more, "--out", str(first)]).exit_code == 0
    keep(first, prompt_file, tmp_path / "t.xz")
    result = CliRunner().invoke(
        write.main, [*more, "--text", str(tmp_path / "t.xz"), "--out", str(again)]
    )
    assert result.exit_code == 0, result.output
    one, two = Recording(first), Recording(again)
    place = {int(record["source"]): i for i, record in enumerate(two.sequences)}
    for number, record in enumerate(one.sequences):
        here, there = one.sequence(number), two.sequence(place[int(record["source"])])
        for name in ("token", "next"):
            assert here[name].tolist() == there[name].tolist()
        for name in ("state", "features"):
            np.testing.assert_allclose(here[name], there[name], atol=0.02)
        for name in ("prompt", "temperature", "ended"):
            assert record[name] == two.sequences[place[int(record["source"])]][name]


def test_other_prompts_are_refused(recording, prompt_file, tmp_path):
    keep(recording, prompt_file, tmp_path / "t.xz")
    other = tmp_path / "other.jsonl"
    other.write_text('{"source": "a", "prompt": "b"}\n')
    with pytest.raises(TrainingError, match="answers other prompts"):
        text.known([tmp_path / "t.xz"], other, 1)
