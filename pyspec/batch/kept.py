"""What prompts begin with alike: read once, taken over from sequence to sequence, and kept in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspec.engine.handle import Engine, Role
from pyspec.tokens import common_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspec.prompt_cache import PromptFile

LEAST = 16
"""Shortest common beginning worth taking over, tokens."""

_CELLS_A_TOKEN = 64
# a stream is copied whole: so many cells take about the time of reading one token of a small model


class KeptTexts:
    """Which texts free sequences still hold, those freed longest ago first.

    each: cells of a stream, 0 in a pool, where a copy costs nothing.
    """

    def __init__(self, engine: Engine, n_slots: int, each: int) -> None:
        self._engine = engine
        self.least = max(LEAST, each // _CELLS_A_TOKEN)
        self.texts: dict[int, list[int]] = {seq: [] for seq in range(n_slots)}
        self.shared: list[int] = []
        """The longest beginning that a text took over from another."""

    def keep(self, seq: int, text: Sequence[int], n: int) -> None:
        """A sequence is free, and its first n tokens stay."""
        # one token more than is kept: the last token of a text is never held
        held = list(text[: n + 1]) if n > 0 else []
        self._engine.set_tokens(seq, held)
        self.texts[seq] = held

    def pad(self, text: Sequence[int]) -> list[int]:
        """Make this the text of all free sequences, which hold none of it; returns their numbers."""
        for seq in self.texts:
            self.keep(seq, (), 0)
            self._engine.set_tokens(seq, text)
        return list(self.texts)

    def source(
        self, prompt: Sequence[int], active: Mapping[int, Sequence[int]]
    ) -> tuple[int | None, int]:
        """Which sequence holds most of a prompt's beginning, and how many tokens."""
        best, most = None, self.least - 1
        for seq, text in (*self.texts.items(), *active.items()):
            n = common(text, prompt)
            if n > most:
                n = min(n, self._engine.held(Role.TARGET, seq))
            if n > most:
                best, most = seq, n
        return best, most if best is not None else 0

    def take(self, seq: int, prompt: Sequence[int], source: int | None, n: int) -> None:
        """Take a free sequence for a text, whose first n tokens come from `source`."""
        self.texts.pop(seq)
        if source is not None:
            if n > len(self.shared):
                self.shared = list(prompt[:n])
            if source != seq:
                self._engine.copy_prefix(source, seq, n)

    def restore(self, file: PromptFile, most: int) -> None:
        """Take up what a file holds, in a context that holds nothing yet; most: cells for it."""
        tokens = file.load(0, most)
        if len(tokens) > self.least:
            self._engine.set_tokens(0, tokens, held=len(tokens))
            self.texts[0] = self.shared = tokens

    def save(self, file: PromptFile) -> None:
        """Write the longest beginning that texts shared, or the longest text where none did."""
        wanted = self.shared or max(self.texts.values(), key=len, default=[])
        seq, n = self.source([*wanted, 0], {})
        if seq is not None:
            self._engine.set_tokens(seq, [*wanted[:n], 0])
            file.save(seq, wanted[:n])
            self.texts[seq] = wanted[:n]

    def drop(self, most: int, spare: int | None = None) -> None:
        """Forget texts, oldest first, until they take at most so many cells; `spare` is kept for longest."""
        for seq in sorted(self.texts, key=lambda seq: seq == spare):
            if sum(map(len, self.texts.values())) <= most:
                return
            self.keep(seq, (), 0)


def longest_common(text: Sequence[int], prompts: Iterable[Sequence[int]]) -> int:
    """Tokens of `text` that the prompt most like it begins with."""
    return max((common(text, prompt) for prompt in prompts), default=0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two texts begin with alike, at most all of b but its last."""
    return max(0, min(common_prefix(a, b), len(b) - 1))
