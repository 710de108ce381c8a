"""Reads a text that arrives in pieces as if it were complete.

A reader is a generator: it yields when it needs more text, and resumes when more has come. Only the few characters that may begin
a mark are looked at twice, so the time is linear in the text; nothing recurses over it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from pyspec.errors import OptionError

MAX_STOPS, MAX_STOP_CHARS = 256, 8192  # most stop strings of an answer, and their total characters


def check_stops(given: Iterable[str]) -> tuple[str, ...]:
    """Return stop strings. Raises OptionError for a single text, if one is empty, or if there are too many or too long ones."""
    if isinstance(given, str):
        raise OptionError(f"the stop strings are one text, {given[:80]!r}", "give a list")
    stops = tuple(given)
    if not all(stops):
        raise OptionError("a stop string is empty", "leave it out")
    if len(stops) > MAX_STOPS or sum(map(len, stops)) > MAX_STOP_CHARS:
        raise OptionError(
            f"there are {len(stops)} stop strings of {sum(map(len, stops))} characters",
            f"use at most {MAX_STOPS} of {MAX_STOP_CHARS} characters together",
        )
    return stops


@lru_cache(maxsize=256)
def _beginnings(words: tuple[str, ...]) -> tuple[list[str], int, frozenset[str]]:
    """Return the sorted words, the length of the longest, and their first characters."""
    return sorted(words), max(map(len, words), default=1), frozenset(word[0] for word in words)


def begun(text: str, words: tuple[str, ...]) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of one of `words`."""
    known, longest, firsts = _beginnings(words)
    for at in range(max(0, len(text) - longest + 1), len(text)):
        if text[at] in firsts:
            end = text[at:]
            place = bisect_right(known, end)  # of the first word that is longer
            if place < len(known) and known[place].startswith(end):
                return len(end)
    return 0


class StopFinder:
    """Passes a text on up to the first of some strings to be complete, and never shows part of one."""

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops, self._held = check_stops(stops), ""
        self.found: str | None = None  # the string that was met; further text is ignored

    def push(self, new: str) -> str:
        """Return the held and new text that can no longer be part of a stop string."""
        if self.found or not self._stops:
            return "" if self.found else new
        text = self._held + new
        at = {stop: text.find(stop) for stop in self._stops}
        found = [(start + len(stop), start, stop) for stop, start in at.items() if start >= 0]
        if found:
            _, start, self.found = min(found)
            return text[:start]
        cut = len(text) - begun(text, self._stops)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """Return the text still held back at the end."""
        rest, self._held = "" if self.found else self._held, ""
        return rest


_T = TypeVar("_T")
Scan = Generator[None, None, _T]  # a reader: it yields to wait for text, and returns what it found
MAX_NAME = 256  # longest name of a function and the like, characters
_SPACE = re.compile(r"\s*")


@lru_cache(maxsize=256)
def any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that matches any of these words, the longest first."""
    longest = sorted(words, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)) or r"(?!)")


class Scanner:
    """The text that has arrived and is still unread."""

    def __init__(self) -> None:
        self.taken: list[str] | None = None  # receives all that is read, unchanged, if it is a list
        self.ended = False
        self._text, self._at = "", 0

    def feed(self, text: str) -> None:
        self._text, self._at = self._text[self._at :] + text, 0

    @property
    def rest(self) -> str:
        """The text that has arrived and is still unread."""
        return self._text[self._at :]

    def take(self, n: int) -> str:
        """Read n characters that have arrived."""
        text = self._text[self._at : self._at + n]
        self._at += len(text)
        if self.taken is not None:
            self.taken.append(text)
        return text

    def peek(self) -> Scan[str]:
        """Return the next character without reading it; empty at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def accept(self, *marks: str) -> Scan[str]:
        """Read the longest of these marks that comes next; return an empty text if none does."""
        while True:
            here = (m for m in marks if self._text.startswith(m, self._at))
            found = max(here, key=len, default="")
            if self.ended or not self._may_grow(self._at, marks):
                return self.take(len(found))
            yield

    def space(self) -> Scan[str]:
        parts: list[str] = []
        while (char := (yield from self.peek())) and char.isspace():
            match = _SPACE.match(self._text, self._at)
            parts.append(self.take(max(1, len(match[0]) if match else 0)))
        return "".join(parts)

    def after_space(self, *marks: str) -> Scan[str]:
        """Skip white space, then `accept` one of these marks."""
        yield from self.space()
        return (yield from self.accept(*marks))

    def copy(self, marks: tuple[str, ...], emit: Callable[[str], object]) -> Scan[str]:
        """Emit text as it arrives up to the first mark, and read and return the mark; empty at the end."""
        pattern = any_of(marks)
        while True:
            match = pattern.search(self._text, self._at)
            # if one mark begins with another, the longer one may still arrive
            if match and (self.ended or not self._may_grow(match.start(), marks)):
                if match.start() > self._at:
                    emit(self.take(match.start() - self._at))
                return self.take(len(match[0]))
            end = match.start() if match else len(self._text) - self._begun(marks)
            if end > self._at:
                emit(self.take(end - self._at))
            if self.ended:
                return ""
            yield

    def until(self, marks: tuple[str, ...], *, keep: bool = False) -> Scan[tuple[str, str]]:
        """Read the text up to the first mark, and return both; with `keep` the mark stays unread.

        The mark is empty if none came within MAX_NAME characters.
        """
        parts: list[str] = []
        room = MAX_NAME
        pattern = any_of(marks)
        while True:
            match = pattern.search(self._text, self._at)
            end = match.start() if match else len(self._text) - self._begun(marks)
            parts.append(self.take(min(end - self._at, room + 1)))
            room -= len(parts[-1])
            if room < 0 or (self.ended and not match):
                return "".join(parts), ""
            if match:
                return "".join(parts), match[0] if keep else self.take(len(match[0]))
            yield

    def _begun(self, marks: tuple[str, ...]) -> int:
        """Return how many characters at the end may begin a mark."""
        return 0 if self.ended else begun(self.rest, marks)

    def _may_grow(self, at: int, marks: Sequence[str]) -> bool:
        """Whether a longer mark may still arrive at a place."""
        rest = self._text[at : at + max(map(len, marks), default=0)]
        return any(len(m) > len(rest) and m.startswith(rest) for m in marks)


# -- JSON ---------------------------------------------------------------------------------------------------------------

Emit = Callable[[str], object]

_CONSTANTS = {name: name.lower() for name in ("true", "false", "null", "True", "False")}
_CONSTANTS |= dict.fromkeys(("None", "nil"), "null")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ESCAPED = '"\\/bfnrtu'  # what JSON has behind a backslash
_ENDS = (",", ":", "=", "{", "}", "[", "]", "(", ")", " ", "\n")
_CLOSERS = {"{": "}", "[": "]"}


def json_inside(text: str) -> str:
    """Escape a text for use between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def read_json(s: Scanner, emit: Emit, quotes: tuple[str, ...] = ('"', "'")) -> Scan[bool]:
    """Emit one value as JSON as it arrives, and return whether it is complete.

    Only brackets and quotes are checked. Python's constants and quotes become JSON's, and words without quotes texts.
    quotes: string delimiters; long ones allow no escapes.
    """
    closers: list[str] = []
    key = False
    while True:
        found = yield from s.after_space(*quotes, *_CLOSERS, "}", "]", ",", ":")
        if found in quotes:
            emit('"')
            if not (yield from _string(s, emit, found)):
                return False
            emit('"')
        elif found in _CLOSERS:
            closers.append(_CLOSERS[found])
            emit(found)
        elif not found:
            word, end = yield from s.until((*_ENDS, *quotes), keep=True)
            if not word or (not end and not s.ended):
                return False
            emit(json.dumps(word, ensure_ascii=False) if key else _word(word))
        elif not closers or (found in "}]" and found != closers.pop()):
            return False
        else:
            emit(found if found in "}]" else f"{found} ")
        key = bool(closers) and closers[-1] == "}" and found in ("{", ",")
        if not closers and found not in _CLOSERS:
            return True


def _word(word: str) -> str:
    if word in _CONSTANTS or _NUMBER.fullmatch(word):
        return _CONSTANTS.get(word, word)
    return json.dumps(word, ensure_ascii=False)


def _string(s: Scanner, emit: Emit, quote: str) -> Scan[bool]:
    def say(text: str) -> None:
        emit(json_inside(text))

    if len(quote) > 1:
        return bool((yield from s.copy((quote,), say)))
    while (mark := (yield from s.copy((quote, "\\"), say))) == "\\":
        char = yield from s.peek()
        s.take(1)
        kept = "" if char == "'" else "\\"  # in front of others it stays, as in Python
        emit(f"\\{char}" if char and char in _ESCAPED else json_inside(kept + char))
    return bool(mark)


# -- values as text ----------------------------------------------------------------------------------------------------

_TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array",
}  # fmt: skip


def types_of(schema: Any) -> set[str]:
    """Return the JSON types that a parameter's schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    found: set[str] = set()
    choices = schema.get("anyOf") or schema.get("oneOf")
    for each in (schema, *(choices if isinstance(choices, list) else ())):
        kind = each.get("type") if isinstance(each, Mapping) else None
        found |= {k for k in (kind if isinstance(kind, list) else [kind]) if isinstance(k, str)}
    values = schema.get("enum")
    if not found and isinstance(values, list):
        found = {_TYPES.get(type(value), "null") for value in values}
    return found


def typed_value(text: str, types: set[str], *, lines: bool = False) -> str:
    """Return a value's text as JSON, of one of the types if possible, else as a string."""
    bare = text.strip()
    value = bare if _type(bare) else _loosely(bare)
    kind = _type(value)
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    if kind and (fits or "string" not in types):
        return value
    if lines:
        text = text.removeprefix("\n").removesuffix("\n")
    return json.dumps(text, ensure_ascii=False)


def _type(text: str) -> str:
    """Return the JSON type of a text; empty if it is not JSON."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return _TYPES.get(type(json.loads(text, parse_constant=refuse)), "null")
    except (ValueError, RecursionError):
        return ""


def _loosely(text: str) -> str:
    """Convert a Python constant, list or dict to JSON; empty for anything else."""
    if text not in ("True", "False", "None") and text[:1] not in ("{", "["):
        return ""
    s, parts = Scanner(), list[str]()
    s.feed(text)
    s.ended = True
    try:
        next(read_json(s, parts.append))  # the text is complete, so it does not wait
    except StopIteration as end:
        return "".join(parts) if end.value and not s.rest.strip() else ""
    return ""
