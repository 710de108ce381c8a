"""Calls with a name between marks and then an object of arguments: DeepSeek, Kimi, Mistral, Functionary, Solar."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspec.text.calls.form import CallForm
from pyspec.text.calls.objects import read_arguments, read_objects
from pyspec.text.parts import Calls
from pyspec.text.scan import Scan, Scanner


@dataclass(frozen=True)
class NamedCalls(CallForm):
    """NAME and marks, then an object, between the marks `open` and `close`, which may be empty."""

    open: str
    close: str
    head: str
    """Pattern of the text between `open` and the object, with groups `name` and perhaps `id`."""
    written: str
    """How a call is written up to its object, with NAME, # for a number and @ for an id."""
    section: tuple[str, str] = ("", "")
    """Marks that may enclose all calls."""
    others: tuple[str, ...] = ()
    """Marks inside a call."""
    behind: str = ""
    """Text that may follow the object."""
    listed: bool = False
    """Whether a list of objects may follow `open` instead."""
    short_ids: bool = False

    @property
    def opens(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.section[0], self.open)))

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks; they must be shown even if they are control tokens."""
        return tuple(filter(None, (*self.section, self.open, self.close, *self.others)))

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        """Read calls; return False at anything else."""
        if mark == self.section[0] != self.open:
            yield from s.space()
            if not (yield from s.accept(self.open)):
                return False
        if self.listed:
            yield from s.space()
            if (yield from s.peek()) in ("[", "{"):
                return (yield from read_objects(s, calls, ""))
        while (yield from self._read_one(s, calls)):
            yield from s.space()
            ends = filter(None, (self.open, self.section[1]))
            if (yield from s.accept(*ends)) != self.open:
                return True
        return False

    def _read_one(self, s: Scanner, calls: Calls) -> Scan[bool]:
        ends = tuple(filter(None, ("{", self.close)))
        head, end = yield from s.until(ends, keep=True)
        match = re.fullmatch(self.head, head.strip())
        if not end or not match:
            return False
        found = match.groupdict()
        name = (found.get("name") or found.get("other") or "").strip()
        call_id = found.get("id") or ""
        if end == "{":
            if not (yield from read_arguments(s, calls, name, call_id)):
                return False
        else:
            calls.begin(name, call_id)
            calls.add("{}")
        yield from s.space()
        if self.behind and (yield from s.accept(self.behind)):
            yield from s.space()
        if self.close:
            yield from s.accept(self.close)
        return calls.end()


@dataclass(frozen=True)
class SpokenCalls(NamedCalls):
    """Functionary 3.2: each piece of the answer begins with its recipient, a function or `all` for the user.

    The prompt ends with the first mark, so the answer begins with a recipient.
    """

    unmarked = True

    def begin(self, s: Scanner, calls: Calls) -> Scan[bool]:
        """Read the recipient at the answer's beginning, and its piece if that is a call."""
        return (yield from self.read(s, calls, self.open))

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        """Read the next piece's recipient, and its call if it is a function; return False if the recipient is unknown."""
        head, end = yield from s.until(("\n",))
        name = head.strip()
        if not end or (name != "all" and name not in calls.functions):
            return False
        if name == "all":
            return True
        yield from s.space()
        if not (yield from read_arguments(s, calls, name)):
            return False
        return calls.end()
