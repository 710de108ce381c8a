"""Text from tokens as they come: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable

from pyspec.errors import OptionError


class TextAssembler:
    """Turns token bytes into text, without ever showing half a character or a stop string.

    piece: bytes of one token id. stop: strings that end the text; they are not part of it.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Iterable[str] = ()) -> None:
        self._piece = piece
        self._stop = tuple(stop)
        if not all(self._stop):
            raise OptionError("a stop string is empty", "leave it out")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.done = False
        """Whether a stop string was met; further tokens are ignored."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that these tokens make safe to show."""
        if self.done:
            return ""
        self._held += self._decoder.decode(b"".join(map(self._piece, ids)))
        return self._release(final=False)

    def finish(self) -> str:
        """The text still held back at the end."""
        if self.done:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(final=True)

    def _release(self, final: bool) -> str:
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.done = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = 0 if final else max((overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    return next(
        (n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0
    )
