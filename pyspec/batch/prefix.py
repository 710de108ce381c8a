"""What prompts begin with alike: read once, and taken over from whichever sequence holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspec.engine.handle import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspec.engine.handle import Engine

LEAST = 16
"""Shortest common beginning worth taking over, tokens."""

_CELLS_A_TOKEN = 64
# a stream is copied whole: so many cells take about the time of reading one token of a small model


class Kept:
    """Which texts free sequences still hold, those freed longest ago first.

    each: cells of a stream, 0 in a pool, where a copy costs nothing.
    """

    def __init__(self, engine: Engine, n_slots: int, each: int) -> None:
        self._engine = engine
        self.least = max(LEAST, each // _CELLS_A_TOKEN)
        self.texts: dict[int, list[int]] = {seq: [] for seq in range(n_slots)}
        self.longest = 0
        """Most tokens that a text took over from another."""

    @property
    def cells(self) -> int:
        """KV cells that these texts take."""
        return sum(len(text) for text in self.texts.values())

    def keep(self, seq: int, text: Sequence[int], n: int) -> None:
        """A sequence is free, and its first n tokens stay."""
        # one token more than is kept: the last token of a text is never held
        held = list(text[: n + 1]) if n > 0 else []
        self._engine.set_tokens(seq, held)
        self.texts[seq] = held

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

    def take(self, seq: int, prompt: Sequence[int], source: int | None, n: int) -> int:
        """Give a free sequence a text, its beginning from `source`; returns the tokens that its KV holds."""
        self.texts.pop(seq)
        if source is not None:
            self.longest = max(self.longest, n)
            if source != seq:
                self._engine.copy_prefix(source, seq, n)
        return self._engine.set_tokens(seq, prompt)

    def drop(self, most: int, spare: int | None = None) -> None:
        """Forget texts, oldest first, until they take at most so many cells; `spare` is kept for longest."""
        for seq in sorted(self.texts, key=lambda seq: seq == spare):
            if self.cells <= most:
                return
            self.texts[seq] = []
            self._engine.set_tokens(seq, ())


def longest_common(text: Sequence[int], prompts: Iterable[Sequence[int]]) -> int:
    """Tokens of `text` that the prompt most like it begins with."""
    return max((common(text, prompt) for prompt in prompts), default=0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two texts begin with alike, at most all of b but its last."""
    most = min(len(a), len(b) - 1)
    if a[:most] == b[:most]:
        return max(0, most)
    return next(i for i in range(most) if a[i] != b[i])
