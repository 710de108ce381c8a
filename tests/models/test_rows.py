"""Recordings: what is appended comes back, what a crash leaves is cut, damage is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.recipe.rows import Corpus, Meta, Recording, RecordingWriter
from pyspec.errors import TrainingError

META = Meta("0" * 64, 8, 300, 4)


def fill(folder: Path, count: int, meta: Meta = META) -> None:
    """Append `count` sequences of 3 rows."""
    writer = RecordingWriter(folder, meta)
    for number in range(count):
        rows = np.zeros(3, meta.row_dtype())
        rows["token"] = len(writer.sequences) + number
        writer.append(rows, 1, number, 0.0, True)
    writer.close()


def test_sequences_come_back(tmp_path: Path) -> None:
    """The second sequence's rows are those that were appended second."""
    fill(tmp_path, 2)
    assert Recording(tmp_path).sequence(1)["token"].tolist() == [1, 1, 1]


def test_torn_rows_are_cut(tmp_path: Path) -> None:
    """Rows without a record vanish when the recording is opened to go on."""
    fill(tmp_path, 2)
    with (tmp_path / "rows.bin").open("ab") as file:
        file.write(b"torn")
    fill(tmp_path, 1)
    assert Recording(tmp_path).sequence(2)["token"].tolist() == [2, 2, 2]


def test_torn_record_is_cut(tmp_path: Path) -> None:
    """Half a record at the end of the index does not count."""
    fill(tmp_path, 2)
    with (tmp_path / "sequences.bin").open("ab") as file:
        file.write(b"half a record")
    assert len(Recording(tmp_path).sequences) == 2


def test_corrupt_rows_are_named(tmp_path: Path) -> None:
    """A flipped byte in a row is found by its sequence's checksum."""
    fill(tmp_path, 2)
    data = bytearray((tmp_path / "rows.bin").read_bytes())
    data[-1] ^= 1
    (tmp_path / "rows.bin").write_bytes(data)
    with pytest.raises(TrainingError, match=r"sequence 1 .* is corrupt"):
        Recording(tmp_path).sequence(1)


def test_short_rows_are_named(tmp_path: Path) -> None:
    """A recording whose rows were cut off is refused as a whole."""
    fill(tmp_path, 2)
    data = (tmp_path / "rows.bin").read_bytes()
    (tmp_path / "rows.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(TrainingError, match="shorter than its index"):
        Recording(tmp_path)


def test_corrupt_record_is_named(tmp_path: Path) -> None:
    """A flipped byte inside the index is not taken for a torn end."""
    fill(tmp_path, 3)
    data = bytearray((tmp_path / "sequences.bin").read_bytes())
    data[3] ^= 1
    (tmp_path / "sequences.bin").write_bytes(data)
    with pytest.raises(TrainingError, match=r"record 0 .* is corrupt"):
        Recording(tmp_path)


def test_other_target_is_refused(tmp_path: Path) -> None:
    """A recording does not go on with another target's rows."""
    fill(tmp_path, 1)
    with pytest.raises(TrainingError, match="another target"):
        fill(tmp_path, 1, Meta("1" * 64, 8, 300, 4))


def test_no_recording_is_one_sentence(tmp_path: Path) -> None:
    """An empty folder says which step is missing."""
    with pytest.raises(TrainingError, match="holds no readable recording"):
        Recording(tmp_path)


def test_joined_sequences_are_the_same_rows_in_one_context(tmp_path: Path) -> None:
    """Tokens and what is learned of them stay as they are; only the padding and the borders go."""
    fill(tmp_path, 9)
    corpus = Corpus([tmp_path], 448)
    apart, joined = (next(corpus.batches(1, 0, 1000, share)) for share in (0.0, 1.0))
    assert joined.rows.shape == (1, apart.rows.size)
    assert joined.rows["token"].ravel().tolist() == apart.rows["token"].ravel().tolist()
    for name in ("answer", "prompt"):
        assert getattr(joined, name).ravel().tolist() == getattr(apart, name).ravel().tolist()


def test_large_vocabulary_keeps_its_ids() -> None:
    """Ids above 65535 are stored in 32 bits."""
    assert Meta("0", 8, 151_936, 4).row_dtype()["ids"].base == np.dtype("<u4")
