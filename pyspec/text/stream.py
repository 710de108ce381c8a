"""Text from tokens as they come: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
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


class StopFinder:
    """Finds the first of many strings in a text that comes character by character (Aho and Corasick, CACM 18(6), 1975).

    A state is what of a string the text ends with, the longest one; `depth` is that one's length and `ends` the length
    of the longest string that ends there.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.depth, self.ends = [0], [0]
        for stop in stops:
            state = 0
            for char in stop:
                state = self._next[state].setdefault(char, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self.ends.append(0)
                    self.depth.append(0)
            self.ends[state] = len(stop)
        self._shorter = [0] * len(self._next)
        self._link()

    def _link(self) -> None:
        """For each state the next shorter one, from the shortest on."""
        level = [0]
        while level:
            below = []
            for state in level:
                for char, following in self._next[state].items():
                    self.depth[following] = self.depth[state] + 1
                    if state:
                        self._shorter[following] = self.step(self._shorter[state], char)
                    shorter = self._shorter[following]
                    self.ends[following] = self.ends[following] or self.ends[shorter]
                    below.append(following)
            level = below

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(char, 0)


@lru_cache(maxsize=16)
def _finder(stops: tuple[str, ...]) -> StopFinder:
    return StopFinder(stops)


class TextAssembler:
    """Turns token bytes into text, without ever showing half a character or a stop string.

    piece: bytes of one token id. stop: strings that end the text; they are not part of it. The first that is complete counts,
    however the text is cut into tokens.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Iterable[str] = ()) -> None:
        self._piece = piece
        stops = tuple(stop)
        check_stops(stops)
        self._finder, self._state = _finder(stops) if stops else None, 0
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
        finder = self._finder
        if finder is None:
            return new
        text, state, start = self._held + new, self._state, len(self._held)
        for at, char in enumerate(new, start + 1):
            state = finder.step(state, char)
            if finder.ends[state]:
                begin = at - finder.ends[state]
                self.done, self._held, self.stopped_by = True, "", text[begin:at]
                return text[:begin]
        self._state, cut = state, len(text) - finder.depth[state]
        self._held = text[cut:]
        return text[:cut]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    return next(
        (n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0
    )
