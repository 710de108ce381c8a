"""Two drafters without a model, to compare with: prompt lookup, and a table of n-grams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspec.models.recipe.corpus import Corpus
from pyspec.models.recipe.scores import Guess


def lookup(rows: NDArray[Any], prompt: int, longest: int = 4) -> Guess:
    """What followed the latest earlier place with the same last tokens, longest match first."""
    tokens = [int(t) for t in rows["token"]]
    latest: dict[tuple[int, ...], int] = {}
    guesses = []
    for end in range(1, len(tokens) + 1):
        keys = [tuple(tokens[end - n : end]) for n in range(min(longest, end), 0, -1)]
        if end >= prompt:
            place = next((latest[key] for key in keys if key in latest), None)
            guesses.append(-1 if place is None else tokens[place])
        for key in keys:
            latest[key] = end  # the token after this place is tokens[end], once it exists
    return Guess(np.array([guesses], np.int64))


class Table:
    """The commonest continuation of the last 3, 2 or 1 tokens in the text of recordings."""

    def __init__(self, folders: list[Path], longest: int = 3) -> None:
        self.longest = longest
        counts: dict[tuple[int, ...], dict[int, int]] = {}
        corpus = Corpus(folders, 1 << 20)
        for item in corpus.items:
            rows, prompt = corpus.sequence(item)
            self._count(counts, [int(t) for t in rows["token"]] + [int(rows["next"][-1])], prompt)
        self.best = {key: max(found, key=found.__getitem__) for key, found in counts.items()}

    def _count(
        self, counts: dict[tuple[int, ...], dict[int, int]], tokens: list[int], prompt: int
    ) -> None:
        for end in range(prompt, len(tokens)):
            for n in range(1, self.longest + 1):
                found = counts.setdefault(tuple(tokens[end - n : end]), {})
                found[tokens[end]] = found.get(tokens[end], 0) + 1

    def guess(self, rows: NDArray[Any], prompt: int) -> Guess:
        """The table's guess at each row that predicts the answer."""
        tokens = [int(t) for t in rows["token"]]
        found = []
        for end in range(prompt, len(tokens) + 1):
            keys = [tuple(tokens[end - n : end]) for n in range(self.longest, 0, -1)]
            found.append(next((self.best[key] for key in keys if key in self.best), -1))
        return Guess(np.array([found], np.int64))
