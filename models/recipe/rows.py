"""Recorded rows: what the target saw, chose and felt at every position, on disk.

A recording is a directory:

    meta.json       the target's sha256 and sizes, how many logits are kept, the format version
    rows.bin        fixed-size rows, appended (see `row_dtype`); memory-mappable
    sequences.bin   one 40-byte record a sequence, appended after its rows are on disk

A sequence exists once its record is whole, so whatever a crash leaves behind the last record is
cut when the recording is opened again. Sequence 0 is the shared prefix of all prompts (the system
turn); it is stored once and belongs before every other sequence.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pyspec.errors import TrainingError

FORMAT = 2
HELD_OUT = 50  # prompts whose number is a multiple of this are never trained on
SEQUENCE = np.dtype(
    [
        ("start", "<u8"),
        ("length", "<u4"),
        ("prompt", "<u4"),  # rows that hold the prompt; the others were generated
        ("source", "<i8"),  # line of the prompts file, -1 for the shared prefix
        ("temperature", "<f4"),
        ("crc", "<u4"),  # crc32 of the rows
        ("ended", "<u4"),  # 1 when the target ended the answer itself
        ("check", "<u4"),  # crc32 of this record's first 36 bytes
    ]
)


@dataclass(frozen=True)
class Meta:
    """What a recording was made from; two runs with equal metas may be joined."""

    target_sha256: str
    n_embd: int
    n_vocab: int
    top: int
    layers: tuple[int, ...] = ()
    format: int = FORMAT

    def row_dtype(self) -> np.dtype[Any]:
        """One row: the token at this position, the one after it, and what the target said here.

        `ids` are the target's `top` best tokens, best first; `logp` their log-probabilities
        (logit - `lse`); `state` the final hidden state, after the last norm; `features` the inputs
        of the layers in `layers`, which an EAGLE-3 head reads.
        """
        ids = "<u2" if self.n_vocab <= 1 << 16 else "<u4"
        return np.dtype(
            [
                ("token", "<i4"),
                ("next", "<i4"),
                ("lse", "<f4"),
                ("ids", ids, (self.top,)),
                ("logp", "<f2", (self.top,)),
                ("state", "<f2", (self.n_embd,)),
                ("features", "<f2", (len(self.layers), self.n_embd)),
            ]
        )


def need_space(folder: Path, size: int) -> None:
    """Raise `TrainingError` when `folder` has less than `size` bytes (and a tenth) free."""
    free = shutil.disk_usage(folder).free
    if free < size + size // 10:
        raise TrainingError(
            f"{folder} has {free / 1e9:.1f} GB free and the step needs {size / 1e9:.1f} GB",
            "free some space or ask for fewer tokens",
        )


class RecordingWriter:
    """Appends sequences to a recording; opening one that exists resumes it."""

    def __init__(self, folder: Path, meta: Meta) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.meta = meta
        self.dtype = meta.row_dtype()
        self._check_meta(folder)
        self._rows, self._index, self.sequences = _open_for_append(folder, self.dtype)
        self.rows = _end(self.sequences)

    def _check_meta(self, folder: Path) -> None:
        path = folder / "meta.json"
        if not path.exists():
            path.write_text(json.dumps(asdict(self.meta), indent=1))
        if read_meta(folder) != self.meta:
            raise TrainingError(
                f"{folder} was recorded with another target or other options",
                "give another folder, or the same target",
            )

    def append(
        self, rows: NDArray[Any], prompt: int, source: int, temperature: float, ended: bool
    ) -> None:
        """Add one sequence: its rows first, its record once they are on disk."""
        data = rows.tobytes()
        record = np.zeros(1, SEQUENCE)
        head = (self.rows, len(rows), prompt, source, temperature, zlib.crc32(data), int(ended), 0)
        record[0] = head
        record["check"] = zlib.crc32(record.tobytes()[:-4])
        try:
            self._rows.write(data)
            self._rows.flush()
            self._index.write(record.tobytes())
            self._index.flush()
        except OSError as error:
            raise TrainingError(
                f"the recording cannot grow: {error.strerror}", "free some space and run it again"
            ) from error
        self.rows += len(rows)

    def close(self) -> None:
        """Push everything to the disk and close the files."""
        for file in (self._rows, self._index):
            os.fsync(file.fileno())
            file.close()


class Recording:
    """A recording opened for reading; `rows` is memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.meta = read_meta(folder)
        dtype = self.meta.row_dtype()
        self.folder = folder
        self.sequences = _whole_records(folder / "sequences.bin")
        have = (folder / "rows.bin").stat().st_size // dtype.itemsize
        if have < _end(self.sequences):
            raise TrainingError(
                f"{folder}/rows.bin is shorter than its index says", "write the recording again"
            )
        self.rows: NDArray[Any] = (
            np.memmap(folder / "rows.bin", dtype, "r", shape=(_end(self.sequences),))
            if len(self.sequences)
            else np.zeros(0, dtype)
        )

    def sequence(self, number: int) -> NDArray[Any]:
        """Rows of one sequence; raises `TrainingError` when their crc32 is wrong."""
        record = self.sequences[number]
        start = int(record["start"])
        rows = self.rows[start : start + int(record["length"])]
        if zlib.crc32(rows.tobytes()) != record["crc"]:
            raise TrainingError(
                f"sequence {number} in {self.folder} is corrupt", "write the recording again"
            )
        return rows


def read_meta(folder: Path) -> Meta:
    """The meta of a recording; raises `TrainingError` when there is none or it is damaged."""
    try:
        fields = json.loads((folder / "meta.json").read_text())
        meta = Meta(**{**fields, "layers": tuple(fields.get("layers", ()))})
    except (OSError, ValueError, TypeError) as error:
        raise TrainingError(
            f"{folder} holds no readable recording", "run the write step first"
        ) from error
    if meta.format != FORMAT:
        raise TrainingError(
            f"{folder} has format {meta.format}, this recipe reads {FORMAT}", "write it again"
        )
    return meta


def _end(sequences: NDArray[Any]) -> int:
    return int(sequences[-1]["start"] + sequences[-1]["length"]) if len(sequences) else 0


def _whole_records(path: Path) -> NDArray[Any]:
    """Records of the index up to the first that is torn."""
    data = path.read_bytes() if path.exists() else b""
    whole = len(data) // SEQUENCE.itemsize * SEQUENCE.itemsize
    records = np.frombuffer(data[:whole], SEQUENCE)
    for number, record in enumerate(records):
        if zlib.crc32(record.tobytes()[:-4]) != record["check"]:
            if number + 1 < len(records):
                raise TrainingError(f"record {number} of {path} is corrupt", "write it again")
            return records[:number]
    return records


def _open_for_append(folder: Path, dtype: np.dtype[Any]) -> tuple[BinaryIO, BinaryIO, NDArray[Any]]:
    """Cut what a crash left after the last whole sequence, then open both files at their ends."""
    records = _whole_records(folder / "sequences.bin")
    rows_path, index_path = folder / "rows.bin", folder / "sequences.bin"
    rows, index = rows_path.open("ab"), index_path.open("ab")
    if rows_path.stat().st_size < _end(records) * dtype.itemsize:
        raise TrainingError(f"{rows_path} is shorter than its index says", "write it again")
    rows.truncate(_end(records) * dtype.itemsize)
    index.truncate(len(records) * SEQUENCE.itemsize)
    return rows, index, records


@dataclass
class Batch:
    """Rows of several sequences, padded at the end.

    `rows` [sequences, positions] (see `Meta.row_dtype`), `answer` and `prompt` [sequences,
    positions]: rows that predict a token of the answer, and of the prompt (without the shared
    prefix, which is the same everywhere).
    """

    rows: NDArray[Any]
    answer: NDArray[np.bool_]
    prompt: NDArray[np.bool_]


class Corpus:
    """One or more recordings of the same target; `held_out` None takes every sequence."""

    def __init__(self, folders: list[Path], longest: int, held_out: bool | None = False) -> None:
        self.folders, self.longest, self.held_out = folders, longest, held_out
        self.refresh()

    def refresh(self) -> None:
        """Read the indexes again: the write step may still be adding sequences."""
        self.recordings = [Recording(folder) for folder in self.folders]
        if len({recording.meta for recording in self.recordings}) != 1:
            raise TrainingError("the recordings were made from different targets", "name one kind")
        self.items = [
            (r, number)
            for r, recording in enumerate(self.recordings)
            for number, sequence in enumerate(recording.sequences)
            if sequence["source"] >= 0
            and self.held_out in (None, sequence["source"] % HELD_OUT == 0)
        ]
        if not self.items:
            raise TrainingError("the recordings hold no sequence yet", "let the write step go on")
        self._prefix = [self._prefix_rows(recording) for recording in self.recordings]

    @property
    def meta(self) -> Meta:
        """What all recordings were made from."""
        return self.recordings[0].meta

    def _prefix_rows(self, recording: Recording) -> NDArray[Any]:
        has = len(recording.sequences) and recording.sequences[0]["source"] == -1
        return recording.sequence(0) if has else recording.rows[:0]

    def sequence(self, item: tuple[int, int]) -> tuple[NDArray[Any], int]:
        """(rows with the shared prefix in front, how many of them are prompt)."""
        recording, number = item
        prefix = self._prefix[recording]
        rows = np.concatenate([prefix, self.recordings[recording].sequence(number)])
        if len(prefix):
            rows["next"][len(prefix) - 1] = rows["token"][len(prefix)]
        prompt = len(prefix) + int(self.recordings[recording].sequences[number]["prompt"])
        return rows[: self.longest], prompt

    def batches(self, seed: int, epoch: int, tokens: int, joined: float = 0.0) -> Iterator[Batch]:
        """One epoch, in an order that depends on `seed` and `epoch` alone.

        Sequences are sorted by length within pools of 512, so little of a batch is padding. In a share `joined` of the batches
        they follow each other in one context.
        """
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(self.items))
        groups: list[list[tuple[int, int]]] = []
        for start in range(0, len(order), 512):
            pool = [self.items[i] for i in order[start : start + 512]]
            groups += self._cut(sorted(pool, key=self._length), tokens)
        for index in rng.permutation(len(groups)):
            yield self._batch(groups[index], joined=rng.random() < joined)

    def _length(self, item: tuple[int, int]) -> int:
        recording, number = item
        own = int(self.recordings[recording].sequences[number]["length"])
        return min(self.longest, own + len(self._prefix[recording]))

    def _cut(self, pool: list[tuple[int, int]], tokens: int) -> list[list[tuple[int, int]]]:
        groups: list[list[tuple[int, int]]] = [[]]
        for item in pool:  # lengths rise, so this one is the longest of its group
            if groups[-1] and (len(groups[-1]) + 1) * self._length(item) > tokens:
                groups.append([])
            groups[-1].append(item)
        return groups

    def _batch(self, items: list[tuple[int, int]], *, joined: bool) -> Batch:
        parts = [self._marked(item) for item in items]
        if joined:
            parts = [tuple(np.concatenate(same) for same in zip(*parts, strict=True))]
        longest = max(len(rows) for rows, _, _ in parts)
        fields = (self.meta.row_dtype(), bool, bool)
        batch = Batch(*(np.zeros((len(parts), longest), field) for field in fields))
        for i, (rows, answer, prompt) in enumerate(parts):
            batch.rows[i, : len(rows)] = rows
            batch.answer[i, : len(rows)], batch.prompt[i, : len(rows)] = answer, prompt
        return batch

    def _marked(self, item: tuple[int, int]) -> tuple[NDArray[Any], ...]:
        """A sequence's rows, which of them predict its answer, and which its prompt."""
        rows, begin = self.sequence(item)
        place = np.arange(len(rows))
        prefix = len(self._prefix[item[0]])
        return rows, place >= begin - 1, (place >= prefix) & (place < begin - 1)
