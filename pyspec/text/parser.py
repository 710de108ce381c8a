"""Splits an answer's text, as it streams in, into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspec.text.calls.form import CallForm
from pyspec.text.channels import ChannelReader
from pyspec.text.notation import Notation
from pyspec.text.parts import AnswerPart, Calls, TrimmedText
from pyspec.text.reasoning import Reasoning
from pyspec.text.scan import Scan, Scanner


class AnswerParser:
    """Splits an answer into parts while it streams in. It never raises: what cannot be parsed is content.

    notation: how the model writes. inside: whether the prompt ends inside reasoning. functions: parameter schemas by function
    name; without any, calls are content. name: the answer's name, from which ids of calls are made.

    White space around reasoning and around calls is dropped. A call inside reasoning ends it.
    """

    def __init__(
        self,
        notation: Notation,
        *,
        inside: bool = False,
        functions: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> None:
        self._parts: list[AnswerPart] = []
        self._s = Scanner()
        self._family = notation.calls if functions or notation.always_calls else None
        short = notation.calls is not None and notation.calls.short_ids
        give = self._parts.append
        self.calls = Calls(self._s, give, functions or {}, name, short_ids=short)
        self._content = TrimmedText("content", give, ends=self._family is not None)
        self._reasoning = TrimmedText("reasoning", give, ends=True)
        self._marks = notation.reasoning
        self._inside = inside and notation.reasoning is not None
        self._channels: ChannelReader | None = None
        if notation.channels:
            self._content.ends = bool(functions)
            self._channels = ChannelReader(self._s, self._content, self._reasoning, self.calls)
        self._reading = self._channels.read() if self._channels else self._read()
        next(self._reading, None)

    @property
    def inside(self) -> bool:
        """Whether the next text belongs to reasoning; at the end, whether the answer was cut inside it."""
        return self._channels.is_thinking if self._channels else self._inside

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that this text makes safe to show."""
        self._s.feed(text)
        return self._go()

    def finish(self) -> list[AnswerPart]:
        """Return what was held back until the end."""
        self._s.ended = True
        next(self._reading, None)
        self._content.flush()
        return self._drain()

    def _go(self) -> list[AnswerPart]:
        next(self._reading, None)
        return self._drain()

    def _drain(self) -> list[AnswerPart]:
        parts = joined(self._parts)
        self._parts.clear()
        return parts

    # -- marks ---------------------------------------------------------------------------------------------------------

    def _read(self) -> Scan[None]:
        yield from self._begin()
        marks, family = self._marks, self._family
        opens = marks.open if marks and marks.anywhere else ()
        dropped = marks.dropped if marks else ()
        ends = (*opens, *dropped, *(family.opens if family else ()))
        while mark := (yield from self._s.copy(ends, self._content.add)):
            if marks and mark in opens:
                self._inside = True
                self._reasoning.renew()
                yield from self._think(marks)
            elif family and mark in family.opens:
                yield from self._call(family, mark, self._content)

    def _begin(self) -> Scan[None]:
        """Read reasoning, or a call without a mark, at the beginning."""
        s = self._s
        if self._marks:
            space = yield from s.space()
            opened = yield from s.accept(*self._marks.open)
            if self._inside or opened:
                self._inside = True
                self._reasoning.renew()
                yield from self._think(self._marks)
            else:
                self._content.add(space)
        if self._family and self._family.unmarked:
            s.taken = [self._content.hold()]
            self._end_calls((yield from self._family.begin(s, self.calls)))

    def _think(self, marks: Reasoning) -> Scan[None]:
        """Read reasoning up to its end, or to a call inside it."""
        family = self._family
        ends = (*marks.close, *(family.opens if family else ()))
        while True:
            mark = yield from self._s.copy(ends, self._reasoning.add)
            if family and mark in family.opens:
                count = self.calls.begun
                yield from self._call(family, mark, self._reasoning)
                if self.calls.begun == count:
                    continue
            self._inside = not mark
            self._content.skip()
            return

    def _call(self, family: CallForm, mark: str, place: TrimmedText) -> Scan[None]:
        """Read calls after their mark. place: where the text goes if it holds no call."""
        self._s.taken = [place.hold(), mark]
        count = self.calls.begun
        whole = yield from family.read(self._s, self.calls, mark)
        self._end_calls(whole, place if self.calls.begun == count else self._content)

    def _end_calls(self, whole: bool, place: TrimmedText | None = None) -> None:
        s, calls = self._s, self.calls
        if calls.is_open:
            calls.abandon()
        elif whole:
            self._content.skip()
        left, s.taken = "".join(s.taken or ()), None
        if not whole:
            (place or self._content).add(left)


def joined(parts: list[AnswerPart]) -> list[AnswerPart]:
    """Join neighbouring parts of the same kind and call."""
    made: list[AnswerPart] = []
    for part in parts:
        last = made[-1] if made else None
        same = last and (last.kind, last.index) == (part.kind, part.index)
        if last and same and part.kind in ("reasoning", "content", "arguments"):
            made[-1] = AnswerPart(part.kind, last.text + part.text, part.index)
        else:
            made.append(part)
    return made
