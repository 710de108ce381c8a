"""Shows an answer by the source of its tokens while it comes, and afterwards what the target preferred."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from pyspec.screen.words import counted, safe
from pyspec.text.parts import Source, Token

Bytes = Callable[[int], bytes]
"""Returns the bytes of a token."""

_STYLES = {Source.TARGET: "", Source.ACCEPTED: "green", Source.RELAXED: "bold yellow"}
_FRAMES = {Source.TARGET: ("", ""), Source.ACCEPTED: ("[", "]"), Source.RELAXED: ("{", "}")}
_MEANING = {
    Source.TARGET: "the model's own",
    Source.ACCEPTED: "drafted and right",
    Source.RELAXED: "drafted and close",
}


def has_colour(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


class TokenPaint:
    """Colours the text of an answer by where its tokens came from; without colour, drafted parts are framed.

    `take` the tokens before their text is shown. The text may differ in white space, as where lines are broken, and may lack
    marks.
    """

    def __init__(self, piece: Bytes, *, colour: bool) -> None:
        self._piece, self._colour = piece, colour
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._sources: deque[tuple[str, Source]] = deque()  # of characters still to be shown
        self._open = Source.TARGET

    def take(self, tokens: Iterable[Token]) -> None:
        """Note the tokens of a piece. A character split over tokens belongs to the last of them."""
        for token in tokens:
            text = safe(self._decoder.decode(self._piece(token.id)))
            self._sources.extend((char, token.source) for char in text if not char.isspace())

    def __call__(self, shown: str) -> Iterator[tuple[str, str]]:
        """Parts of shown text with their styles."""
        for source, chars in groupby(shown, self._source):
            text = "".join(chars)
            if self._colour:
                yield text, _STYLES[source]
            else:
                yield self._framed(source) + text, ""

    def finish(self) -> str:
        """The end of the last frame."""
        return "" if self._colour else self._framed(Source.TARGET)

    def _source(self, char: str) -> Source:
        if char.isspace():  # belongs to the word after it, as in the tokens
            return self._sources[0][1] if self._sources and char != "\n" else self._open
        while self._sources:  # skip what is not shown, such as a mark
            first, source = self._sources.popleft()
            if first == char:
                return source
        return Source.TARGET

    def _framed(self, source: Source) -> str:
        before, self._open = self._open, source
        return "" if before is source else _FRAMES[before][1] + _FRAMES[source][0]


def print_legend(console: Console, tokens: Sequence[Token], piece: Bytes) -> None:
    """Print what the colours or frames of a painted answer mean, then each relaxed token with what the target preferred."""
    colour, lines = has_colour(console), Text("\n")
    for source in Source:
        if count := sum(token.source is source for token in tokens):
            before, after = ("", "") if colour else _FRAMES[source]
            lines.append("; " if len(lines) > 1 else "")
            lines.append(f"{before}{source.label}{after}", _STYLES[source])
            lines.append(f": {counted(count, 'token')}, {_MEANING[source]}")
    lines.append("\n" if tokens else "")
    relaxed = [token for token in tokens if token.source is Source.RELAXED]
    for number, token in enumerate(relaxed, start=1):
        ids = token.id, token.preferred
        confirmed = f" ({token.confirmed} behind it its own)" if token.confirmed else ""
        emitted, preferred = (safe(piece(i).decode("utf-8", "replace")) for i in ids)
        lines.append(
            f"({number}) {emitted!r}, the target preferred {preferred!r} by {token.gap:.3f} nats{confirmed}\n"
        )
    console.print(lines, soft_wrap=not console.is_terminal, end="")
