"""Training batches from recordings: sequences of like length together, in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspec.models.recipe.rows import Meta, Recording

from pyspec.errors import TrainingError

HELD_OUT = 50  # prompts whose number is a multiple of this are never trained on


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

    def batches(self, seed: int, epoch: int, tokens: int) -> Iterator[Batch]:
        """One epoch, in an order that depends on `seed` and `epoch` alone.

        Sequences are sorted by length within pools of 512, so little of a batch is padding.
        """
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(self.items))
        groups: list[list[tuple[int, int]]] = []
        for start in range(0, len(order), 512):
            pool = [self.items[i] for i in order[start : start + 512]]
            groups += self._cut(sorted(pool, key=self._length), tokens)
        for index in rng.permutation(len(groups)):
            yield self._batch(groups[index])

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

    def _batch(self, items: list[tuple[int, int]]) -> Batch:
        found = [self.sequence(item) for item in items]
        longest = max(len(rows) for rows, _ in found)
        rows = np.zeros((len(items), longest), self.meta.row_dtype())
        answer = np.zeros((len(items), longest), bool)
        prompt = np.zeros((len(items), longest), bool)
        for i, (own, begin) in enumerate(found):
            rows[i, : len(own)] = own
            answer[i, begin - 1 : len(own)] = True
            prompt[i, len(self._prefix[items[i][0]]) : begin - 1] = True
        return Batch(rows, answer, prompt)
