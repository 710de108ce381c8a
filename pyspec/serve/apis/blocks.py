"""An answer as a sequence of blocks: reasoning, content, calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyspec.text.parts import AnswerPart, is_object

BlockStep = tuple[Literal["begin", "more", "end"], "AnswerBlock", str]

_TEXTS = ("reasoning", "content")


@dataclass
class AnswerBlock:
    """One block. text: a call's is its arguments. call: a call's id. name: a call's function. index: counts from 0."""

    kind: Literal["reasoning", "content", "call"]
    index: int
    text: str = ""
    call: str = ""
    name: str = ""

    @property
    def whole(self) -> bool:
        """False for a call whose arguments were cut."""
        return self.kind != "call" or is_object(self.text)


class AnswerBlocks:
    """Groups parts into blocks as they arrive."""

    def __init__(self) -> None:
        self.all: list[AnswerBlock] = []
        self._open: AnswerBlock | None = None

    def take(self, parts: Iterable[AnswerPart]) -> Iterator[BlockStep]:
        """Yield the steps that these parts take: blocks that begin, grow by a text, and end."""
        for part in parts:
            if part.kind == "call":
                yield from self.end()
                yield from self._begin("call", part.id, part.text)
                continue
            if part.kind == "broken":  # its text has been sent already
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
        """End the open block, if any."""
        if self._open is not None:
            block, self._open = self._open, None
            yield "end", block, ""

    def _begin(
        self, kind: Literal["reasoning", "content", "call"], call: str = "", name: str = ""
    ) -> Iterator[BlockStep]:
        self._open = AnswerBlock(kind, len(self.all), "", call, name)
        self.all.append(self._open)
        yield "begin", self._open, ""
