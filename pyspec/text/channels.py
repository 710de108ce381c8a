"""Answers in gpt-oss's channels: messages whose header names the recipient.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>`; a call is a message
`to=functions.NAME`. See https://github.com/openai/harmony.
"""

from __future__ import annotations

import re

from pyspec.text.calls.objects import read_arguments
from pyspec.text.parts import Calls, TrimmedText
from pyspec.text.scan import Scan, Scanner

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKS = (START, CHANNEL, MESSAGE, *ENDS, "<|constrain|>")
_HEADS = ("to=", " to=", START, CHANNEL, MESSAGE)

_TO, _IN = re.compile(r"\bto=([^\s<]+)"), re.compile(r"<\|channel\|>\s*(\w+)")
_UNFINISHED = re.compile(r"[\w .=]{0,80}(?:<\|channel\|>[\w .=]{0,80})?(?:<\|constrain\|>\w{0,9})?")


class ChannelReader:
    """Reads an answer message by message."""

    def __init__(
        self, s: Scanner, content: TrimmedText, reasoning: TrimmedText, calls: Calls
    ) -> None:
        self._s, self._content, self._reasoning, self._calls = s, content, reasoning, calls
        self.is_thinking = False

    def read(self) -> Scan[None]:
        """Read to the end of the answer. Text outside messages is content, and so is an invalid header."""
        s = self._s
        mark = yield from s.accept(*_HEADS)
        while True:
            if not mark:
                mark = yield from s.copy((*MARKS[:3], *ENDS), self._content.add)
            if not mark:
                return
            if mark not in ENDS:
                yield from self._message(mark)
            mark = ""

    def _message(self, mark: str) -> Scan[None]:
        s = self._s
        s.taken, self.is_thinking = [mark], False
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
        if name and (name != whom or name in self._calls.functions):
            yield from self._call(name)
            return
        s.taken = None
        self.is_thinking = bool(channel and channel[1] == "analysis")
        yield from self._body(self._reasoning if self.is_thinking else self._content)

    def _body(self, kind: TrimmedText) -> Scan[None]:
        kind.renew()
        if (yield from self._s.copy(ENDS, kind.add)):
            self.is_thinking = False

    def _call(self, name: str) -> Scan[None]:
        s, calls = self._s, self._calls
        yield from s.space()
        whole = bool(calls.functions) and (yield from read_arguments(s, calls, name))
        if whole and calls.end():
            yield from s.space()
            yield from s.accept(*ENDS)
        elif calls.is_open:
            calls.abandon()
        else:
            self._content.add("".join(s.taken or ()))
        s.taken = None
