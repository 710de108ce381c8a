"""An answer as a row of blocks that are written one after the other: reasoning, content, calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyspec.text.parts import AnswerPart, is_object

BlockStep = tuple[Literal["begin", "more", "end"], "AnswerBlock", str]

_TEXTS = ("reasoning", "content")


@dataclass
class AnswerBlock:
    """One of them. text: of a call, its arguments. call: a call's id; name: its function's. index: its place, from 0."""

    kind: Literal["reasoning", "content", "call"]
    index: int
    text: str = ""
    call: str = ""
    name: str = ""

    @property
    def whole(self) -> bool:
        """Whether it can be used: a call whose arguments were cut cannot."""
        return self.kind != "call" or is_object(self.text)


class AnswerBlocks:
    """Makes blocks of parts as they come."""

    def __init__(self) -> None:
        self.all: list[AnswerBlock] = []
        self._open: AnswerBlock | None = None

    def take(self, parts: Iterable[AnswerPart]) -> Iterator[BlockStep]:
        """What these parts begin, add to and end; with each what is added."""
        for part in parts:
            if part.kind == "call":
                yield from self.end()
                yield from self._begin("call", part.id, part.text)
                continue
            if part.kind == "broken":  # what was written of it went out already
                yield from self.end()
                continue
            kind = part.kind if part.kind in _TEXTS else "call"
            if self._open is None or self._open.kind != kind:
                yield from self.end()
                yield from self._begin(kind)  # type: ignore[arg-type]
            if part.text and self._open is not None:
                self._open.text += part.text
                yield "more", self._open, part.text

    def end(self) -> Iterator[BlockStep]:
        """The last one is ended, if one is open."""
        if self._open is not None:
            block, self._open = self._open, None
            yield "end", block, ""

    def _begin(
        self, kind: Literal["reasoning", "content", "call"], call: str = "", name: str = ""
    ) -> Iterator[BlockStep]:
        self._open = AnswerBlock(kind, len(self.all), "", call, name)
        self.all.append(self._open)
        yield "begin", self._open, ""
