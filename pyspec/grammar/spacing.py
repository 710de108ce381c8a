"""The spaces between parts of JSON: how an answer has had them so far, and how they will come."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

SPACES = b" \n\t\r"
_OPENED, _CLOSED = b"{[", b"}]"


@dataclass(slots=True)
class Spacing:
    """Reads an answer's bytes, and says which spaces come behind them.

    At first these are what most models write: one space behind colons and commas. If an object or list begins with a new line,
    each of its parts and its end are expected on a line of their own. What is inside is expected to be written the same way.
    """

    before: bytes = b""
    """The last character that is no space."""
    space: bytes = b""
    """The spaces since then."""
    lines: list[bool] = field(default_factory=list)
    """Whether each open object or list has its parts on lines."""
    nested: dict[bytes, bool] = field(default_factory=dict)
    """Whether the last objects and lists had, by the character that opens them."""
    unit: bytes = b"  "
    """One level's indent."""
    _colon: bytes = b" "
    _comma: bytes = b" "
    _quoted: bool = False
    _escaped: bool = False

    def copy(self) -> Spacing:
        """Return one that reads on by itself."""
        return replace(self, lines=[*self.lines], nested={**self.nested})

    def read(self, text: bytes) -> None:
        for at in range(len(text)):
            self._read(text[at : at + 1])

    def _read(self, char: bytes) -> None:
        if self._quoted:
            self._quoted = self._escaped or char != b'"'
            self._escaped = char == b"\\" and not self._escaped
            self.before = char
        elif char in SPACES:
            self.space += char
        else:
            self._learn(char)
            if char in _OPENED:
                self.lines.append(self.nested.get(char, self.lines[-1] if self.lines else False))
            elif char in _CLOSED and self.lines:
                self.lines.pop()
            self._quoted = char == b'"'
            self.before, self.space = char, b""

    def _learn(self, char: bytes) -> None:
        """Note the spaces between the last character and this one."""
        if self.before == b":":
            self._colon = self.space
        elif self.before == b"," and b"\n" not in self.space:
            self._comma = self.space
        if self.before in (b"{", b"[") and char not in _CLOSED and self.lines:
            self.nested[self.before] = self.lines[-1] = b"\n" in self.space
            indent = self.space.rpartition(b"\n")[2]
            if self.lines[-1] and len(indent) >= len(self.lines):
                self.unit = indent[: len(indent) // len(self.lines)]

    def expected(self, char: bytes) -> bytes:
        """Return the spaces that are still to come before `char`. If it is empty, it stands for any that begins a value."""
        wanted = self._wanted(char)
        return wanted[len(self.space) :] if wanted.startswith(self.space) else b""

    def _wanted(self, char: bytes) -> bytes:
        if self._quoted or not self.lines:
            return b""
        if self.before == b":":
            return self._colon
        inside = self.before in (b"{", b"[", b",")
        # the first line break of an answer is seen before it is learnt
        lined = self.lines[-1] or (inside and b"\n" in self.space)
        if char in (b"}", b"]"):
            closing = lined and not inside
            return b"\n" + self.unit * (len(self.lines) - 1) if closing else b""
        if inside and lined:
            return b"\n" + self.unit * len(self.lines)
        return self._comma if self.before == b"," else b""
