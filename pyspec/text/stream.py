"""Text from tokens as they come: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from pyspec.errors import OptionError

MOST_STOPS, MOST_STOP_CHARS = 256, 8192
"""Stop strings of one answer, and characters of all of them together."""


def check_stops(stops: Sequence[str]) -> None:
    """Raise OptionError for stop strings that are empty, too many or too long."""
    if not all(stops):
        raise OptionError("a stop string is empty", "leave it out")
    if len(stops) > MOST_STOPS or sum(map(len, stops)) > MOST_STOP_CHARS:
        raise OptionError(
            f"there are {len(stops)} stop strings of {sum(map(len, stops))} characters",
            f"use at most {MOST_STOPS} of {MOST_STOP_CHARS} characters together",
        )


@lru_cache(maxsize=256)
def _beginnings(words: tuple[str, ...]) -> tuple[list[str], int, frozenset[str]]:
    """Words in order, the longest one's length, and what they begin with."""
    return sorted(words), max(map(len, words), default=1), frozenset(word[0] for word in words)


def begun(text: str, words: tuple[str, ...]) -> int:
    """Length of the longest end of the text that one of these words begins with, and is not."""
    known, longest, firsts = _beginnings(words)
    for at in range(max(0, len(text) - longest + 1), len(text)):
        if text[at] in firsts and begins(known, text[at:]):
            return len(text) - at
    return 0


def begins(words: list[str], text: str) -> bool:
    """Whether a text is the beginning of one of these sorted words, and not all of it."""
    at = bisect_left(words, text)
    while at < len(words) and words[at] == text:
        at += 1
    return at < len(words) and words[at].startswith(text)


class TextAssembler:
    """Turns token bytes into text, without ever showing half a character or a stop string.

    piece: bytes of one token id. stop: strings that end the text; they are not part of it. The first that is complete counts,
    however the text is cut into tokens.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Iterable[str] = ()) -> None:
        self._piece = piece
        self._stops = tuple(stop)
        check_stops(self._stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.done = False
        """Whether a stop string was met; further tokens are ignored."""
        self.stopped_by: str | None = None
        """That string."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that these tokens make safe to show."""
        if self.done:
            return ""
        return self._release(self._decoder.decode(b"".join(map(self._piece, ids))))

    def finish(self) -> str:
        """The text still held back at the end."""
        if self.done:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = "" if self.done else self._held, ""
        return text + rest

    def _release(self, new: str) -> str:
        """What of the held text and the new one no stop string can reach any more."""
        if not self._stops:
            return new
        text = self._held + new
        at = {stop: text.find(stop) for stop in self._stops}
        found = [(start + len(stop), start, stop) for stop, start in at.items() if start >= 0]
        if found:
            _, start, self.stopped_by = min(found)
            self.done, self._held = True, ""
            return text[:start]
        cut = len(text) - begun(text, self._stops)
        self._held = text[cut:]
        return text[:cut]
