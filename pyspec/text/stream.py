"""Turns streamed tokens into text: whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from pyspec.errors import OptionError

MAX_STOPS, MAX_STOP_CHARS = 256, 8192
"""Most stop strings of an answer, and their total characters."""


def check_stops(stops: Sequence[str]) -> None:
    """Raise OptionError if a stop string is empty, or there are too many or too long ones."""
    if not all(stops):
        raise OptionError("a stop string is empty", "leave it out")
    if len(stops) > MAX_STOPS or sum(map(len, stops)) > MAX_STOP_CHARS:
        raise OptionError(
            f"there are {len(stops)} stop strings of {sum(map(len, stops))} characters",
            f"use at most {MAX_STOPS} of {MAX_STOP_CHARS} characters together",
        )


@lru_cache(maxsize=256)
def _beginnings(words: tuple[str, ...]) -> tuple[list[str], int, frozenset[str]]:
    """Return the sorted words, the length of the longest, and their first characters."""
    return sorted(words), max(map(len, words), default=1), frozenset(word[0] for word in words)


def begun(text: str, words: tuple[str, ...]) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of one of `words`."""
    known, longest, firsts = _beginnings(words)
    for at in range(max(0, len(text) - longest + 1), len(text)):
        if text[at] in firsts and begins(known, text[at:]):
            return len(text) - at
    return 0


def begins(words: list[str], text: str) -> bool:
    """Whether `text` is a proper prefix of one of these sorted words."""
    at = bisect_left(words, text)
    while at < len(words) and words[at] == text:
        at += 1
    return at < len(words) and words[at].startswith(text)


class TextAssembler:
    """Turns token bytes into text, and never shows half a character or a stop string.

    piece: bytes of one token id. stop: strings that end the text and are not part of it. The first to be complete counts,
    no matter how the text is split into tokens.
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
        """The stop string that was met."""

    @property
    def halfway(self) -> bool:
        """Whether the last token ended inside a character."""
        return bool(self._decoder.getstate()[0])

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that these tokens make safe to show."""
        if self.done:
            return ""
        return self._release(self._decoder.decode(b"".join(map(self._piece, ids))))

    def finish(self) -> str:
        """Return the text still held back at the end."""
        if self.done:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = "" if self.done else self._held, ""
        return text + rest

    def _release(self, new: str) -> str:
        """Return the held and new text that can no longer be part of a stop string."""
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
