"""Recordings: what is appended comes back, what a crash leaves is cut, damage is named."""

import numpy as np
import pytest

from models.recipe.rows import Corpus, Meta, Recording, RecordingWriter
from pyspec.errors import TrainingError

META = Meta("0" * 64, 8, 300, 4)


def fill(folder, count, meta=META):
    writer = RecordingWriter(folder, meta)
    for number in range(count):
        rows = np.zeros(3, meta.row_dtype())
        rows["token"] = len(writer.sequences) + number
        writer.append(rows, 1, number, 0.0, True)
    writer.close()


def test_sequences_come_back(tmp_path):
    fill(tmp_path, 2)
    assert Recording(tmp_path).sequence(1)["token"].tolist() == [1, 1, 1]


def changed(path, change):
    path.write_bytes(change(bytearray(path.read_bytes())))


@pytest.mark.parametrize("file", ["rows.bin", "sequences.bin"])
def test_what_is_torn_is_cut(tmp_path, file):
    fill(tmp_path, 2)
    changed(tmp_path / file, lambda data: data + b"torn")
    assert len(Recording(tmp_path).sequences) == 2
    fill(tmp_path, 1)
    assert Recording(tmp_path).sequence(2)["token"].tolist() == [2, 2, 2]


@pytest.mark.parametrize(("file", "change", "named"), [
    ("rows.bin", lambda data: data[:-1] + bytes([data[-1] ^ 1]), r"sequence 1 .* is corrupt"),
    ("rows.bin", lambda data: data[: len(data) // 2], "shorter than its index"),
    ("sequences.bin", lambda data: data[:3] + bytes([data[3] ^ 1]) + data[4:], r"record 0 .* is corrupt"),
])  # fmt: skip
def test_damage_is_named(tmp_path, file, change, named):
    fill(tmp_path, 2)
    changed(tmp_path / file, change)
    with pytest.raises(TrainingError, match=named):
        Recording(tmp_path).sequence(1)


def test_other_target_is_refused(tmp_path):
    fill(tmp_path, 1)
    with pytest.raises(TrainingError, match="another target"):
        fill(tmp_path, 1, Meta("1" * 64, 8, 300, 4))


def test_no_recording_is_one_sentence(tmp_path):
    with pytest.raises(TrainingError, match="holds no readable recording"):
        Recording(tmp_path)


def test_joined_sequences_are_the_same_rows_in_one_context(tmp_path):
    fill(tmp_path, 9)
    corpus = Corpus([tmp_path], 448)
    apart, joined = (next(corpus.batches(1, 0, 1000, share)) for share in (0.0, 1.0))
    assert joined.rows.shape == (1, apart.rows.size)
    assert joined.rows["token"].ravel().tolist() == apart.rows["token"].ravel().tolist()
    for name in ("answer", "prompt"):
        assert getattr(joined, name).ravel().tolist() == getattr(apart, name).ravel().tolist()


def test_large_vocabulary_keeps_its_ids():
    assert Meta("0", 8, 151_936, 4).row_dtype()["ids"].base == np.dtype("<u4")
