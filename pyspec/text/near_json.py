"""Turns values that are almost JSON into JSON as they stream in: other quotes, bare keys, Python's constants."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pyspec.text.scan import Scan, Scanner

Emit = Callable[[str], object]

_CONSTANTS = {"True": "true", "False": "false", "None": "null", "nil": "null"}
_BARE = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}
_ENDS = (",", ":", "=", "{", "}", "[", "]", "(", ")", " ", "\n")
_CLOSERS = {"{": "}", "[": "]"}


def json_inside(text: str) -> str:
    """Escape a text for use between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def read_near_json(s: Scanner, emit: Emit, quotes: tuple[str, ...] = ('"', "'")) -> Scan[bool]:
    """Emit one value as JSON, and return whether it is complete. quotes: string delimiters; long ones allow no escapes."""
    closers: list[str] = []
    key = False
    while True:
        yield from s.space()
        found = yield from s.accept(*quotes, *_CLOSERS, "}", "]", ",", ":")
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
    if word in _CONSTANTS or word in _BARE or _NUMBER.fullmatch(word):
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
        say(_ESCAPES.get(char, char))
    return bool(mark)
