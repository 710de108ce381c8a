"""Splits an answer's text, as it streams in, into reasoning, content and tool calls.

gpt-oss writes them as messages whose header names the recipient, which is `to=functions.NAME` for a call:
`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>`.
See https://github.com/openai/harmony.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pyspec.text.calls import CallForm, Calls, read_arguments
from pyspec.text.notation import CHANNEL, ENDS, MARKS, MESSAGE, START, Notation, Reasoning
from pyspec.text.parts import AnswerPart, PartKind
from pyspec.text.stream import Scan, Scanner


class TrimmedText:
    """Outgoing text of one kind. ends: whether white space at its end is held back until more text follows."""

    def __init__(self, kind: PartKind, give: Callable[[AnswerPart], None], *, ends: bool) -> None:
        self.ends = ends
        self._kind, self._give = kind, give
        self._dropping = self._has_text = False
        self._space: list[str] = []

    def skip(self) -> None:
        """Drop white space up to the next text."""
        self._dropping = True
        self._space.clear()

    def renew(self) -> None:
        """Start a new paragraph with the next text."""
        self.skip()
        if self._has_text:
            self._space.append("\n\n")

    def add(self, text: str) -> None:
        if self._dropping:
            text = text.lstrip()
        if not text:
            return
        self._dropping = False
        body = text.rstrip() if self.ends else text
        if body:
            self._has_text = True
            self._give(AnswerPart(self._kind, self.hold() + body))
        self._space.append(text[len(body) :])

    def hold(self) -> str:
        """Take out and return the white space that was held back."""
        space = "".join(self._space)
        self._space.clear()
        return space

    def flush(self) -> None:
        """Pass on the white space that was held back."""
        if space := self.hold():
            self._give(AnswerPart(self._kind, space))


_HEADS = ("to=", " to=", START, CHANNEL, MESSAGE)

_TO, _IN = re.compile(r"\bto=([^\s<]+)"), re.compile(r"<\|channel\|>\s*(\w+)")
_UNFINISHED = re.compile(r"[\w .=]{0,80}(?:<\|channel\|>[\w .=]{0,80})?(?:<\|constrain\|>\w{0,9})?")


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
        self._family = notation.calls if functions else None
        give, short = self._parts.append, notation.calls.short_ids
        self.calls = Calls(self._s, give, functions or {}, name, short_ids=short)
        self._content = TrimmedText("content", give, ends=bool(functions))
        self._reasoning = TrimmedText("reasoning", give, ends=True)
        self._marks = notation.reasoning
        self.inside = inside and notation.reasoning is not None
        """Whether the next text belongs to reasoning; at the end, whether the answer was cut inside it."""
        self._reading = self._read_channels() if notation.channels else self._read()
        next(self._reading, None)

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that this text makes safe to show."""
        self._s.feed(text)
        return self._drain()

    def finish(self) -> list[AnswerPart]:
        """Return what was held back until the end."""
        self._s.ended = True
        next(self._reading, None)
        self._content.flush()
        return self._drain()

    def _drain(self) -> list[AnswerPart]:
        next(self._reading, None)
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
                self.inside = True
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
            if self.inside or opened:
                self.inside = True
                self._reasoning.renew()
                yield from self._think(self._marks)
            else:
                self._content.add(space)
        if self._family:
            s.taken = [self._content.hold()]
            whole = yield from self._family.begin(s, self.calls)
            self._end_calls(whole, self._content)

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
            self.inside = not mark
            self._content.skip()
            return

    def _call(self, family: CallForm, mark: str, place: TrimmedText) -> Scan[None]:
        """Read calls after their mark. place: where the text goes if it holds no call."""
        self._s.taken = [place.hold(), mark]
        count = self.calls.begun
        whole = yield from family.read(self._s, self.calls, mark)
        self._end_calls(whole, place if self.calls.begun == count else None)

    def _end_calls(self, whole: bool, place: TrimmedText | None) -> None:
        """Close what was read as calls. place: where the text goes if it holds no call; None if it holds some."""
        s, calls = self._s, self.calls
        if calls.is_open:
            calls.abandon()
        elif whole or place is None:
            self._content.skip()
        left, s.taken = "".join(s.taken or ()), None
        if not whole:
            (place or self._content).add(left)

    # -- channels ------------------------------------------------------------------------------------------------------

    def _read_channels(self) -> Scan[None]:
        """Read messages to the end of the answer. Text outside them is content, and so is an invalid header."""
        mark = yield from self._s.accept(*_HEADS)
        while True:
            if not mark:
                mark = yield from self._s.copy((*MARKS[:3], *ENDS), self._content.add)
            if not mark:
                return
            if mark not in ENDS:
                yield from self._message(mark)
            mark = ""

    def _message(self, mark: str) -> Scan[None]:
        s = self._s
        s.taken, self.inside = [mark], False
        head, end = ("", MESSAGE) if mark == MESSAGE else (yield from s.until((MESSAGE, *ENDS)))
        header = mark + head
        if end != MESSAGE:
            taken, s.taken = "".join(s.taken), None
            if end or not s.ended or not _UNFINISHED.fullmatch(head):
                self._content.add(taken)
            return
        to, channel = _TO.search(header), _IN.search(header)
        whom = to[1] if to else ""
        name = whom.removeprefix("functions.")
        if name and (name != whom or name in self.calls.functions):
            yield from self._call_to(name)
            return
        s.taken = None
        self.inside = bool(channel and channel[1] == "analysis")
        kind = self._reasoning if self.inside else self._content
        kind.renew()
        if (yield from s.copy(ENDS, kind.add)):
            self.inside = False

    def _call_to(self, name: str) -> Scan[None]:
        s, calls = self._s, self.calls
        yield from s.space()
        known = bool(calls.functions)
        whole = known and (yield from read_arguments(s, calls, name)) and calls.end()
        if whole:
            yield from s.after_space(*ENDS)
        self._end_calls(whole, self._content)


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
