"""How the chat looks: answers whose words wrap as they come, a line of statistics, and all that is not an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pyspec.chat.model import AnswerStats
from pyspec.display import PromptStatus, safe, token_text
from pyspec.tokens import Token

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


def stats_table(stats: AnswerStats) -> list[tuple[str, str]]:
    """Everything known of an answer, as names and values."""
    block, times = stats.block, stats.timings
    factor = block.get("times_plain")
    tokens = round(block["rounds"] * block["mean_length"])
    return [
        ("tokens", str(tokens)),
        ("rate", f"{stats.rate:.1f} tok/s"),
        ("without drafts", "not known" if factor is None else f"{stats.rate / factor:.1f} tok/s"),
        ("times as fast", "not known" if factor is None else f"{factor:.2f}"),
        (
            "drafted",
            f"{block['drafted']} tokens, {block['verified']} checked, {block['accepted']} accepted",
        ),
        ("mean length", f"{block['mean_length']:.2f} tokens a round"),
        ("relaxed", f"{block['relaxed']} tokens, {block['relaxed_nats']:.3f} nats"),
        (
            "prompt",
            f"{block['prompt_tokens']} tokens, {block['prompt_kept']} kept from the last turn",
        ),
        ("first token", f"{times['first_token_ms']:.0f} ms"),
        ("whole answer", f"{times['total_ms']:.0f} ms"),
        ("rule", stats.rule),
        ("draft", str(block["draft"])),
        ("companion", str(block["companion"])),
    ]


class Screen:
    """Where the chat writes: answers and what commands show to `out`, all the rest to `err`."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self._err = err
        self.progress = PromptStatus(err)
        self.wrap = True

    def say(self, text: str) -> None:
        """A line of what a command was asked to show."""
        self._out.file.write(safe(text) + "\n")
        self._out.file.flush()

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Names and values, one pair a line."""
        for name, value in rows:
            self.say(f"{name:<15} {value}")

    def note(self, text: str) -> None:
        """A dim line about what happened."""
        self._err.print(Text(safe(text), "dim"), soft_wrap=True)

    def error(self, text: str) -> None:
        """A sentence about what went wrong."""
        self._err.print(Text(safe(text), "red"), soft_wrap=True)

    def tokens(self, tokens: Sequence[Token], piece: Callable[[int], bytes]) -> None:
        """An answer's tokens by their source."""
        colour = self._out.color_system is not None and not self._out.no_color
        self._out.print(token_text(tokens, piece, colour), soft_wrap=True, end="")

    @contextmanager
    def answering(self) -> Iterator[Callable[[str], None]]:
        """Gives what writes the pieces of one answer; ends its last line. On a terminal words wrap at the edge."""
        ends = ["\n"]
        wrapper = Wrapper(self._out.width) if self.wrap and self._out.is_terminal else None

        def put(shown: str) -> None:
            if shown:
                ends[0] = shown[-1]
                self._out.file.write(shown)
                self._out.file.flush()

        def write(text: str) -> None:
            self.progress.stop()
            put(wrapper.push(safe(text)) if wrapper else safe(text))

        try:
            yield write
        finally:
            self.progress.stop()
            if wrapper:
                put(wrapper.finish())
            if ends[0] != "\n":
                self._out.file.write("\n")
                self._out.file.flush()
