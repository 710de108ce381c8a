"""The prefix cache: texts in free sequences, from which prompts copy their beginning, and a file for the longest shared one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspec.engine.handle import Engine, Role
from pyspec.engine.kept import MIN_TOKENS, ParkedText, ParkedTexts, PromptFile
from pyspec.text.parts import common_prefix

_CELLS_A_TOKEN = 256
# a stream is copied whole: 430 cells took as long as prefilling one token of SmolLM2-135M (BF16, two cores)


class PrefixCache:
    """The texts that free sequences still hold, the sequence freed longest ago first.

    Only its owner may reuse a text, since faster answers would reveal it to others. each: cells of a stream, 0 in a pool, where
    copies are free. public: returns the prefix of the template and server that every owner may reuse. parked: keeps texts of
    evicted sequences.
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
        # by sequence, active ones included
        self._owners = dict.fromkeys(range(n_slots), "")
        self.least = max(MIN_TOKENS, each // _CELLS_A_TOKEN)
        self.texts: dict[int, list[int]] = {seq: [] for seq in range(n_slots)}
        self.shared: list[int] = []
        """The longest prefix that was reused and has no owner."""

    def keep(self, seq: int, text: Sequence[int], n: int) -> None:
        """Free a sequence, and keep its first n tokens."""
        # one token more than is kept: the KV cache never holds a text's last token
        held = list(text[: n + 1]) if n > 0 else []
        self._engine.set_tokens(seq, held)
        self.texts[seq] = held

    def pad(self, text: Sequence[int]) -> list[int]:
        """Set this text in all free sequences, whose KV cache then holds none of it. Returns the sequences."""
        for seq in self.texts:
            self.keep(seq, (), 0)
            self._engine.set_tokens(seq, text)
        return list(self.texts)

    def is_of(self, seq: int, owner: str) -> bool:
        return owner == self._owners[seq]

    def common(self, seq: int, text: Sequence[int], prompt: Sequence[int], owner: str) -> int:
        """Tokens of the prefix that a prompt shares with a sequence's text, and that its owner may reuse."""
        n = common(text, prompt)
        return n if self.is_of(seq, owner) else min(n, common(self._public(), prompt))

    def left(self, seq: int, prompt: Sequence[int], owner: str) -> int:
        """Tokens of a prompt's prefix that this free sequence holds, so that no copy is needed."""
        n = self.common(seq, self.texts[seq], prompt, owner)
        return min(n, self._engine.held(Role.TARGET, seq))

    def source(
        self, prompt: Sequence[int], owner: str, active: Mapping[int, Sequence[int]]
    ) -> tuple[int | None, int]:
        """The sequence with the longest prefix of a prompt, and its tokens; None and 0 below `least` tokens."""
        best, most = None, self.least - 1
        for seq, text in (*self.texts.items(), *active.items()):
            n = self.common(seq, text, prompt, owner)
            if n > most:
                n = min(n, self._engine.held(Role.TARGET, seq))
            if n > most:
                best, most = seq, n
        return best, most if best is not None else 0

    def take(self, seq: int, prompt: Sequence[int], owner: str, source: int | None, n: int) -> None:
        """Occupy a free sequence. The first n tokens of the prompt are copied from `source`."""
        self._park(seq, n if source in (None, seq) else 0)
        if owner != self._owners[seq] and source in (None, seq):
            self.keep(seq, self.texts[seq], n)  # the rest belongs to another owner
        self.texts.pop(seq)
        self._owners[seq] = owner
        if source is not None:
            if n > len(self.shared) and (not owner or n <= common(self._public(), prompt)):
                self.shared = list(prompt[:n])
            if source != seq:
                self._engine.copy_prefix(source, seq, n)

    def _park(self, seq: int, n: int) -> None:
        """Park a free sequence's text, if eviction loses more of it than the n tokens that stay."""
        lost = len(self.texts[seq]) - 1 - n
        if self.parked is not None and lost >= max(self.least, n):
            self.parked.park(seq, self.texts[seq], self._owners[seq])

    def fetch(self, prompt: Sequence[int], owner: str, least: int) -> ParkedText | None:
        """Return a parked text that shares a prefix of at least `least` tokens with the prompt."""
        return self.parked.fetch(prompt, owner, least) if self.parked is not None else None

    def move(self, high: int, gap: int, n: int) -> None:
        """Move the n tokens of a sequence to the free one `gap`; the former is then free."""
        self.texts.pop(gap)
        self._owners[gap] = self._owners[high]
        self._engine.copy_prefix(high, gap, n)
        self.keep(high, (), 0)

    def restore(self, file: PromptFile, most: int) -> None:
        """Load a file's prefix into an empty context. most: limit on its cells."""
        tokens = file.load(0, most)
        if len(tokens) > self.least:
            self._engine.set_tokens(0, tokens, held=len(tokens))
            self.texts[0] = self.shared = tokens

    def save(self, file: PromptFile) -> None:
        """Write the longest shared prefix, or else the longest text, to a file. Texts with an owner are never written."""
        texts = [text for seq, text in self.texts.items() if not self._owners[seq]]
        wanted = self.shared or max(texts, key=len, default=[])
        seq, n = self.source([*wanted, 0], "", {})
        if seq is not None:
            self._engine.set_tokens(seq, [*wanted[:n], 0])
            file.save(seq, wanted[:n])
            self.texts[seq] = wanted[:n]

    def drop(self, most: int, spare: int | None = None) -> None:
        """Evict texts, oldest first, until they take at most so many cells. `spare` is evicted last."""
        for seq in sorted(self.texts, key=lambda seq: seq == spare):
            if sum(map(len, self.texts.values())) <= most:
                return
            self._park(seq, 0)
            self.keep(seq, (), 0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens of the common prefix of two texts, at most all of b but its last."""
    return max(0, min(common_prefix(a, b), len(b) - 1))
