"""Words that wrap at the edge of a terminal, as they come."""

from __future__ import annotations

import re

from rich.cells import cell_len

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")


class Wrapper:
    """Breaks lines between words. The newest word is held back until it is known to be whole.

    width: cells of a line. A word wider than that is left for the terminal to break; so are scripts without spaces, one
    wide character being a word there.
    """

    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._column = 0
        self._held = ""
        self._gap = ""

    def push(self, text: str) -> str:
        """What may be shown now."""
        self._held += text
        *whole, self._held = self._split()
        return "".join(map(self._place, whole))

    def _split(self) -> list[str]:
        parts: list[str] = []
        for part in _PARTS.findall(self._held):
            parts += _words(part)
        complete = not parts or parts[-1].isspace() or _wide(parts[-1])
        return [*parts, ""] if complete else parts

    def finish(self) -> str:
        """The rest."""
        rest, self._held = self._held, ""
        return self._place(rest) if rest else ""

    def _place(self, part: str) -> str:
        if part == "\n":
            self._column, self._gap = 0, ""
            return part
        if part.isspace():  # shown with the word behind it, or not at all where the line breaks
            self._gap += part
            return ""
        gap, self._gap = self._gap, ""
        size = cell_len(part)
        if self._column and self._column + _cells(gap, self._column) + size > self._width:
            self._column = size
            return "\n" + part
        self._column += _cells(gap, self._column) + size
        if self._column > self._width:
            self._column %= self._width
        return gap + part


def _cells(gap: str, column: int) -> int:
    at = column
    for char in gap:
        at += 8 - at % 8 if char == "\t" else 1
    return at - column


def _words(part: str) -> list[str]:
    """A word as it is; text without spaces by its wide characters."""
    if part.isspace() or len(part) == cell_len(part):
        return [part]
    words: list[str] = []
    for char in part:
        if words and not _wide(char) and not _wide(words[-1]):
            words[-1] += char
        else:
            words.append(char)
    return words


def _wide(text: str) -> bool:
    return len(text) == 1 and cell_len(text) == 2
