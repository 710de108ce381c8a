"""What prompts begin with alike: read once, taken over from sequence to sequence, and kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspec.engine.handle import Engine, Role
from pyspec.engine.parked import LEAST, ParkedText, ParkedTexts
from pyspec.llama.prompt_cache import PromptFile
from pyspec.text.tokens import common_prefix

_CELLS_A_TOKEN = 256
# a stream is copied whole: 430 cells took the time of reading one token of SmolLM2-135M (BF16, two cores)


class KeptTexts:
    """Which texts free sequences still hold, those freed longest ago first.

    A text is taken over by its owner alone: how soon an answer comes would tell others what it says. each: cells of a stream,
    0 in a pool, where a copy costs nothing. public: gives the beginning of prompts that no owner wrote, which is everybody's.
    parked: keeps texts whose sequence another one takes.
    """

    def __init__(
        self,
        engine: Engine,
        n_slots: int,
        each: int,
        public: Callable[[], Sequence[int]],
        parked: ParkedTexts | None = None,
    ) -> None:
        self._engine, self._public, self.parked = engine, public, parked
        # of what each sequence holds, active ones too
        self._owners = dict.fromkeys(range(n_slots), "")
        self.least = max(LEAST, each // _CELLS_A_TOKEN)
        self.texts: dict[int, list[int]] = {seq: [] for seq in range(n_slots)}
        self.shared: list[int] = []
        """The longest beginning that a text took over from another, where nobody in particular wrote it."""

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

    def is_of(self, seq: int, owner: str) -> bool:
        """Whether a sequence holds what this owner said."""
        return owner == self._owners[seq]

    def common(self, seq: int, text: Sequence[int], prompt: Sequence[int], owner: str) -> int:
        """Tokens that an owner's prompt begins with like the text of a sequence, as far as the owner may know."""
        n = common(text, prompt)
        return n if self.is_of(seq, owner) else min(n, common(self._public(), prompt))

    def left(self, seq: int, prompt: Sequence[int], owner: str) -> int:
        """Tokens that an owner's prompt begins with like what this free sequence holds: nothing is copied for them."""
        n = self.common(seq, self.texts[seq], prompt, owner)
        return min(n, self._engine.held(Role.TARGET, seq))

    def source(
        self, prompt: Sequence[int], owner: str, active: Mapping[int, Sequence[int]]
    ) -> tuple[int | None, int]:
        """Which sequence holds most of the beginning of an owner's prompt, and how many tokens."""
        best, most = None, self.least - 1
        for seq, text in (*self.texts.items(), *active.items()):
            n = self.common(seq, text, prompt, owner)
            if n > most:
                n = min(n, self._engine.held(Role.TARGET, seq))
            if n > most:
                best, most = seq, n
        return best, most if best is not None else 0

    def take(self, seq: int, prompt: Sequence[int], owner: str, source: int | None, n: int) -> None:
        """Take a free sequence for an owner's text, whose first n tokens come from `source`."""
        self._park(seq, n if source in (None, seq) else 0)
        if owner != self._owners[seq] and source in (None, seq):
            self.keep(seq, self.texts[seq], n)  # no more of it is the owner's
        self.texts.pop(seq)
        self._owners[seq] = owner
        if source is not None:
            if n > len(self.shared) and (not owner or n <= common(self._public(), prompt)):
                self.shared = list(prompt[:n])
            if source != seq:
                self._engine.copy_prefix(source, seq, n)

    def _park(self, seq: int, n: int) -> None:
        """Keep a free sequence's text elsewhere, if more of it is about to be lost than the first n tokens that stay."""
        lost = len(self.texts[seq]) - 1 - n
        if self.parked is not None and lost >= max(self.least, n):
            self.parked.park(seq, self.texts[seq], self._owners[seq])

    def fetch(self, prompt: Sequence[int], owner: str, least: int) -> ParkedText | None:
        """Take out a text that is kept elsewhere and begins like an owner's prompt, in at least so many tokens."""
        return self.parked.fetch(prompt, owner, least) if self.parked is not None else None

    def move(self, high: int, gap: int, n: int) -> None:
        """Let a free sequence hold the n tokens of another, which is free from now on."""
        self.texts.pop(gap)
        self._owners[gap] = self._owners[high]
        self._engine.copy_prefix(high, gap, n)
        self.keep(high, (), 0)

    def restore(self, file: PromptFile, most: int) -> None:
        """Take up what a file holds, in a context that holds nothing yet; most: cells for it."""
        tokens = file.load(0, most)
        if len(tokens) > self.least:
            self._engine.set_tokens(0, tokens, held=len(tokens))
            self.texts[0] = self.shared = tokens

    def save(self, file: PromptFile) -> None:
        """Write the longest beginning that texts shared, or the longest text where none did; no owner's whose name is known."""
        texts = [text for seq, text in self.texts.items() if not self._owners[seq]]
        wanted = self.shared or max(texts, key=len, default=[])
        seq, n = self.source([*wanted, 0], "", {})
        if seq is not None:
            self._engine.set_tokens(seq, [*wanted[:n], 0])
            file.save(seq, wanted[:n])
            self.texts[seq] = wanted[:n]

    def drop(self, most: int, spare: int | None = None) -> None:
        """Forget texts, oldest first, until they take at most so many cells; `spare` is kept for longest."""
        for seq in sorted(self.texts, key=lambda seq: seq == spare):
            if sum(map(len, self.texts.values())) <= most:
                return
            self._park(seq, 0)
            self.keep(seq, (), 0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two texts begin with alike, at most all of b but its last."""
    return max(0, min(common_prefix(a, b), len(b) - 1))
