"""Logits of emitted tokens only, in the shape in which llama-cpp-python reads its score buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class ScoreRows:
    """Stands for an [n_tokens, n_vocab] array of which only a few rows were kept.

    `first` is the position of the first kept row. Reading a row costs nothing; only turning the whole into an array
    allocates it, with zeros for the rows that were not kept.
    """

    def __init__(self, first: int, rows: list[npt.NDArray[np.float32]], n_vocab: int) -> None:
        self._first, self._rows, self._n_vocab = first, rows, n_vocab

    @property
    def shape(self) -> tuple[int, int]:
        """[n_tokens, n_vocab]."""
        return self._first + len(self._rows), self._n_vocab

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> npt.NDArray[np.float32]:
        index = key[0] if isinstance(key, tuple) else key
        if not isinstance(index, (int, np.integer)):
            part: npt.NDArray[np.float32] = np.asarray(self)[key]
            return part
        kept = int(index) - self._first if index >= 0 else len(self._rows) + int(index)
        if not 0 <= kept < len(self._rows):
            return np.zeros(self._n_vocab, dtype=np.float32)
        return self._rows[kept]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = np.zeros(self.shape, dtype=np.float32)
        if self._rows:
            whole[self._first :] = self._rows
        return whole if dtype is None else whole.astype(dtype)

    @property
    def size(self) -> int:
        """Floats that are held."""
        return len(self._rows) * self._n_vocab

    @property
    def last(self) -> npt.NDArray[np.float32] | None:
        """The last row kept, [n_vocab], or None."""
        return self._rows[-1] if self._rows else None

    def copy(self) -> npt.NDArray[np.float32]:
        """One row of zeros: a saved state keeps no logits, and one row fits a `llama_cpp.Llama` with any number of them."""
        return np.zeros((1, self._n_vocab), dtype=np.float32)
