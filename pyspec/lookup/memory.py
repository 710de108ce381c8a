"""Remembers earlier texts of each owner in this process.

No owner's text is ever drafted for another. A draft does not change strict output, but its speed reveals whether the draft was
right.
"""

from __future__ import annotations

from pyspec.errors import OptionError
from pyspec.lookup.text_index import TextIndex

MAX_TOKENS = 500_000
"""Most tokens of all owners together, 84 bytes each."""

_AN_OWNER = 50
# tokens that an owner costs besides its texts: the index takes 3 kB, objects 1 kB


class Memory:
    """The texts of each owner, for drafts. Not thread-safe.

    Args:
        tokens: Most tokens of all owners together; each owner counts 50 more. The least recently used owners go first. An owner
            whose own texts are as many starts anew.

    Raises:
        OptionError: No token may be kept.
    """

    def __init__(self, tokens: int = MAX_TOKENS) -> None:
        if tokens < 1:
            raise OptionError(f"a memory cannot have {tokens} tokens", "use at least 1 token")
        self._tokens, self.size = tokens, 0
        self._owners: dict[str, TextIndex] = {}  # least recently used first
        self._counted: dict[str, int] = {}

    def texts_of(self, owner: str) -> TextIndex:
        """An owner's texts; others go to make room. A text that is under way keeps the index that it began with.

        Args:
            owner: Any name; "" owns texts without a named owner.
        """
        self.count(owner)
        if self._counted.get(owner, 0) >= self._tokens:
            self._drop(owner)
        self._owners[owner] = texts = self._owners.pop(owner, None) or TextIndex()
        self.count(owner)
        while len(self._owners) > 1 and self.size + _AN_OWNER * len(self._owners) > self._tokens:
            self._drop(next(iter(self._owners)))
        return texts

    def count(self, owner: str) -> None:
        """Note how many tokens an owner's texts have grown to."""
        if (texts := self._owners.get(owner)) is not None:
            self.size += texts.size - self._counted.get(owner, 0)
            self._counted[owner] = texts.size

    def _drop(self, owner: str) -> None:
        del self._owners[owner]
        self.size -= self._counted.pop(owner)
