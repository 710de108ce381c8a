"""Tables: Markdown for pages and pipes; on a terminal the columns that fit, of which only the last is folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from pyspec.screen.display import folded
from pyspec.screen.words import safe

T = TypeVar("T")

_GAP = 2
_LEAST = 16  # cells from which a long text is worth showing


@dataclass(frozen=True)
class TextTable:
    """Cells under heads. The first column is text; the others are figures, except those named in `words`.

    words: heads of text columns. first: heads of columns in the order in which a narrow terminal shows them; the table's last
    column is folded between words if too long. Without it all columns are shown, and a table that is too wide is transposed.
    needed: how many of `first` are always shown; if they do not fit beside the first column, that gets lines of its own.
    above: these lines.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()
    first: Sequence[str] = ()
    needed: int = 1
    above: Sequence[str] = ()

    @property
    def markdown(self) -> str:
        lines = [self.head, ["---", *["---:"] * (len(self.head) - 1)], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def fitting(self, width: int) -> TextTable:
        """The table for a terminal of this width: columns that fit, or rows and columns exchanged."""
        if self.width <= width:
            return self
        if self.first:
            return self._cut(width) if self._least <= width else self._stacked(width)
        turned = TextTable(*_turned(self.head, self.rows))
        return turned if turned.width < self.width else self

    @property
    def width(self) -> int:
        """Width of its lines in cells."""
        return sum(self._sizes) + _GAP * (len(self.head) - 1)

    @property
    def _sizes(self) -> list[int]:
        columns = zip(self.head, *self.rows, strict=True)
        return [
            max(cell_len(line) for cell in column for line in cell.split("\n"))
            for column in columns
        ]

    @property
    def _least(self) -> int:
        sizes = dict(zip(self.head, self._sizes, strict=True))
        needed = self.first[: self.needed]
        return (
            sum(sizes[name] for name in needed) + _GAP * (len(needed) - 1) if self.needed > 1 else 0
        )

    def _stacked(self, width: int) -> TextTable:
        """The first column above the rest."""
        rest = TextTable(self.head[1:], [row[1:] for row in self.rows], self.words, self.first[1:])
        left = width - _GAP
        above = [self.head[0], *(row[0] for row in self.rows)]
        return replace(rest if rest.width <= left else rest._cut(left), above=above)

    def _cut(self, width: int) -> TextTable:
        sizes, left, kept = dict(zip(self.head, self._sizes, strict=True)), width, dict[str, int]()
        for name in self.first:
            size = sizes[name]
            if size > left and name == self.head[-1] and left >= _LEAST:
                size = left
            if size <= left or not kept:  # the first one in any case
                kept[name] = size
                left -= size + _GAP
        chosen = [(i, kept[name]) for i, name in enumerate(self.head) if name in kept]
        rows = [[_folded(row[i], size) for i, size in chosen] for row in self.rows]
        return TextTable([self.head[i] for i, _ in chosen], rows, self.words, self.first)

    def lines(self) -> list[str]:
        """The head and one line per row, in columns; two lines with what is above."""
        lines = [self._line(row) for row in (self.head, *self.rows)]
        if not self.above:
            return lines
        below = f"\n{' ' * _GAP}"
        return [
            name + below + line.replace("\n", below)
            for name, line in zip(self.above, lines, strict=True)
        ]

    def _line(self, row: Sequence[str]) -> str:
        """A row's cells; the further lines of a folded last one stand below its first."""
        *others, (last, *more) = *row[:-1], row[-1].split("\n")
        cells = [
            text + " " * (size - cell_len(text)) if (i == 0 and not self.above) or name in self.words
            else " " * (size - cell_len(text)) + text
            for i, (name, text, size) in enumerate(zip(self.head, [*others, last], self._sizes, strict=True))
        ]  # fmt: skip
        start = " " * (self.width - self._sizes[-1])
        return "\n".join([(" " * _GAP).join(cells).rstrip(), *(start + line for line in more)])


def _turned(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    first, *others = zip(head, *rows, strict=True)
    return list(first), [list(column) for column in others]


def _folded(text: str, size: int) -> str:
    """Break a cell between words; a word that is too long is cut."""
    return "\n".join(_shortened(line, size) for line in folded(" ".join(text.split()), size))


def _shortened(text: str, size: int) -> str:
    return text if cell_len(text) <= size else set_cell_size(text, size - 1).rstrip() + "…"


def table_of(items: Iterable[T], columns: Mapping[str, Callable[[T], str]]) -> TextTable:
    """A table with one row per item; columns are given by their heads."""
    return TextTable(list(columns), [[show(item) for show in columns.values()] for item in items])


def print_table(table: TextTable, console: Console, *, markdown: bool = True) -> None:
    """Print what fits on a terminal; elsewhere Markdown, or all columns."""
    if markdown and not console.is_terminal:
        console.file.write(table.markdown + "\n")
        return
    head, *lines = (table.fitting(console.width) if console.is_terminal else table).lines()
    console.print(Text(safe(head), "bold"), soft_wrap=True)
    for line in lines:
        console.print(Text(safe(line)), soft_wrap=True)
