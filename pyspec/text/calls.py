"""The forms in which families of models write tool calls.

Most write a JSON object, which has the name too (Hermes, Qwen, Llama 3, Mistral's lists, Command-R), or the name stands between
marks before it (DeepSeek, Gemma, Kimi, Mistral, Solar). Qwen3-Coder, GLM, Seed-OSS, MiniMax and DeepSeek 3.2 have a tag for each
argument, and LFM2 calls as in Python.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspec.text.parts import AnswerPart, encodable, object_of, properties_of
from pyspec.text.stream import Scan, Scanner, json_inside, read_json, typed_value, types_of


class Calls:
    """Turns the calls that a reader finds in a text into parts.

    functions: parameter schemas by function name. name: the answer's name, from which ids are made. short_ids: make ids of
    nine letters and digits, as Mistral's templates demand.
    """

    def __init__(
        self,
        scanner: Scanner,
        give: Callable[[AnswerPart], None],
        functions: Mapping[str, Any],
        name: str,
        *,
        short_ids: bool = False,
    ) -> None:
        self.functions = functions
        self._scanner, self._give = scanner, give
        self._name, self._short = name, short_ids
        self._arguments: list[str] | None = None
        self._index = -1
        self.complete = 0  # how many calls are complete

    @property
    def begun(self) -> int:
        """How many calls have begun."""
        return self._index + 1

    @property
    def is_open(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._arguments is not None

    def begin(self, name: str, call_id: str = "") -> None:
        """Begin a call. call_id: its id, if the model wrote one."""
        self._index += 1
        self._arguments = []
        digest = hashlib.sha256(f"{self._name}\0{self._index}".encode()).hexdigest()
        own = digest[:9] if self._short else f"call_{digest[:24]}"
        self._give(AnswerPart("call", name, self._index, call_id or own))

    def add(self, text: str) -> None:
        """Add to the arguments of the open call."""
        if text and self._arguments is not None:
            self._arguments.append(text)
            self._give(AnswerPart("arguments", text, self._index))

    def end(self) -> bool:
        """Complete the open call if its arguments are a JSON object, and return whether they are."""
        text, taken = "".join(self._arguments or ()), self._scanner.taken
        if object_of(text) is None:
            return False
        self.complete += 1
        self._arguments = None
        if taken is not None:
            taken.clear()
        return True

    def abandon(self) -> None:
        """Withdraw the open call: it was cut or is not valid."""
        taken, self._arguments = self._scanner.taken or [], None
        self._give(AnswerPart("broken", "".join(taken), self._index))
        taken.clear()


@dataclass(frozen=True)
class CallForm(ABC):
    """How a family of models writes calls."""

    open: str
    close: str = ""  # with `open`: around one call, or a list of them; both may be empty
    section: tuple[str, str] = ("", "")  # marks that may enclose all calls
    short_ids: bool = False  # see `Calls`

    @property
    def opens(self) -> tuple[str, ...]:
        """The marks that begin calls."""
        return tuple(filter(None, (self.section[0], self.open)))

    @property
    def inner(self) -> tuple[str, ...]:
        """Marks inside a call."""
        return ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks; they must be shown even if they are control tokens."""
        return tuple(filter(None, (*self.section, self.open, self.close, *self.inner)))

    @abstractmethod
    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        """Read the calls after one of `opens`, with their closing mark. Return False at anything else, which is content."""

    def spoken(self, functions: Sequence[Mapping[str, Any]]) -> list[str] | None:
        """Return calls as the model writes them: a mark, a text, and so on in turn. None if the form is only read.

        functions: the name and the arguments of each.
        """
        return None

    def begin(self, s: Scanner, calls: Calls) -> Scan[bool]:
        """Read a call at the beginning of an answer; return False at anything else."""
        yield from ()
        return False


# -- objects -----------------------------------------------------------------------------------------------------------

_NAMES, _ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
_ASIDE = ("type", "id", "tool_call_id")


@dataclass(frozen=True)
class ObjectCalls(CallForm):
    """Objects between the marks: one, several, or a list."""

    name: str = "name"  # the key of the function's name, as the family writes it
    arguments: str = "arguments"  # the key of the arguments
    listed: bool = False  # whether the family writes a list
    keyed: bool = False  # whether an object's only key is the function's name

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        return (yield from _read_objects(s, calls, self.close, keyed=self.keyed))

    def spoken(self, functions: Sequence[Mapping[str, Any]]) -> list[str] | None:
        if not self.listed or self.keyed:
            return None
        calls = [{self.name: f["name"], self.arguments: f["arguments"]} for f in functions]
        return [self.open, json.dumps(calls, ensure_ascii=False), self.close]


@dataclass(frozen=True)
class BareCalls(ObjectCalls):
    """Llama 3: an object at the beginning of the answer, or a call after its python tag."""

    def begin(self, s: Scanner, calls: Calls) -> Scan[bool]:
        """Read an object at the beginning of the answer if it calls a known function."""
        yield from s.space()
        if (yield from s.peek()) != "{":
            return False
        return (yield from _read_objects(s, calls, "", known=True))

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        """Read objects or `NAME.call(KEY=VALUE)`."""
        yield from s.space()
        if (yield from s.peek()) == "{":
            return (yield from _read_objects(s, calls, self.close))
        return (yield from _read_python(s, calls, r"((?s:.*))\.call"))


def _read_objects(
    s: Scanner, calls: Calls, close: str, *, keyed: bool = False, known: bool = False
) -> Scan[bool]:
    """Read one object, several or a list, and the closing mark if there is one. known: accept only known functions."""
    listed = bool((yield from s.after_space("[")))
    while True:
        if not (yield from _ObjectReader(s, calls, keyed=keyed, known=known).read()):
            return False
        if (yield from s.after_space(",", ";")):
            continue
        if listed and not (yield from s.accept("]")):
            return False
        if listed or (yield from s.peek()) != "{":
            break
    yield from s.after_space(close)
    return True


class _ObjectReader:
    """Reads one call; returns False before it emits any argument if the object is not a call."""

    def __init__(self, s: Scanner, calls: Calls, *, keyed: bool, known: bool) -> None:
        self._s, self._calls, self._keyed, self._known = s, calls, keyed, known
        self._name, self._early = "", ""  # arguments may come before the name

    def read(self) -> Scan[bool]:
        if not (yield from self._s.after_space("{")):
            return False
        yield from self._s.space()
        while (yield from self._pair()):
            if (yield from self._s.after_space("}")):
                return self._end()
            if not (yield from self._s.accept(",")):
                return False
            yield from self._s.space()
        return False

    def _pair(self) -> Scan[bool]:
        key = yield from _read_key(self._s)
        if self._keyed:
            if not key or self._name:
                return False
            self._name = key
            return (yield from read_arguments(self._s, self._calls, key))
        if key in _NAMES and not self._name:
            self._name = yield from _read_text(self._s)
            return bool(self._name) and (not self._known or self._name in self._calls.functions)
        if key in _ARGUMENTS and self._name and not self._calls.is_open:
            return (yield from read_arguments(self._s, self._calls, self._name))
        if key is None or (self._known and key not in (*_ASIDE, *_ARGUMENTS)):
            return False
        value: list[str] = []
        whole = yield from read_json(self._s, value.append)
        if key in _ARGUMENTS:
            self._early = "".join(value)
        return whole

    def _end(self) -> bool:
        if not self._name:
            return False
        if not self._calls.is_open:
            self._calls.begin(self._name)
            self._calls.add(self._early or "{}")
        return self._calls.end()


def _read_key(s: Scanner) -> Scan[str | None]:
    key = yield from _read_text(s)
    if not (yield from s.after_space(":")):
        return None
    yield from s.space()
    return key


def _read_text(s: Scanner) -> Scan[str]:
    """Read a string; return an empty text if there is none."""
    if (yield from s.peek()) != '"':
        return ""
    parts: list[str] = []
    whole = yield from read_json(s, parts.append)
    try:
        return encodable(json.loads("".join(parts))) if whole else ""
    except ValueError:
        return ""


def read_arguments(s: Scanner, calls: Calls, name: str, call_id: str = "") -> Scan[bool]:
    """Begin a call and emit its arguments: an object, an object as a string, or null for none."""
    char = yield from s.peek()
    if char == "{":
        calls.begin(name, call_id)
        return (yield from read_json(s, calls.add))
    if char == '"':
        text = yield from _read_text(s)
    else:
        text = "{}" if (yield from s.accept("null")) else ""
    if not text:
        return False
    calls.begin(name, call_id)
    calls.add(text)
    return True


# -- between marks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MarkedCalls(CallForm):
    """Calls one after the other, each between marks."""

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        if self.open and mark != self.open and not (yield from s.after_space(self.open)):
            return False
        while (yield from self.read_one(s, calls)):
            found = yield from s.after_space(self.open, self.section[1])
            if not found or found != self.open:
                return True
            s.taken = [found]  # white space between calls is no text
        return False

    @abstractmethod
    def read_one(self, s: Scanner, calls: Calls) -> Scan[bool]:
        """Read a call behind `open`, with its closing mark."""


@dataclass(frozen=True, kw_only=True)
class NamedCalls(MarkedCalls):
    """NAME and marks, then an object."""

    head: str  # pattern of the text between `open` and the object: `name`, perhaps `id`
    written: str  # a call up to its object, with NAME, # for a number and @ for an id
    others: tuple[str, ...] = ()  # marks inside a call
    behind: str = ""  # text that may follow the object
    quote: str = ""  # mark around the object's texts, if it is no JSON; its keys are bare then
    listed: bool = False  # whether a list of objects may follow `open` instead

    @property
    def inner(self) -> tuple[str, ...]:
        return (*self.others, self.quote)

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        if self.listed:
            yield from s.space()
            if (yield from s.peek()) in ("[", "{"):
                return (yield from _read_objects(s, calls, ""))
        return (yield from super().read(s, calls, mark))

    def read_one(self, s: Scanner, calls: Calls) -> Scan[bool]:
        ends = tuple(filter(None, ("{", self.close)))
        head, end = yield from s.until(ends, keep=True)
        match = re.fullmatch(self.head, head.strip())
        if not end or not match:
            return False
        found = match.groupdict()
        name = (found.get("name") or found.get("other") or "").strip()
        calls.begin(name, found.get("id") or "")
        if end == self.close:
            calls.add("{}")
        elif not (yield from read_json(s, calls.add, (self.quote or "'", '"'))):
            return False
        yield from s.after_space(self.behind)
        yield from s.after_space(self.close)
        return calls.end()


# -- tags --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TaggedCalls(MarkedCalls):
    """A name, then each argument between tags."""

    name_end: str  # ends the function's name, which `open` begins
    key_open: str
    key_ends: tuple[str, ...]  # what may end an argument's name, which `key_open` begins
    value_close: str  # with `value_open`: around an argument's value
    value_open: str = ""
    text_key: str = ""  # the one of `key_ends` that marks a value as text
    lines: bool = False  # whether a value stands on lines of its own

    @property
    def inner(self) -> tuple[str, ...]:
        return (self.key_open, *self.key_ends, self.value_open, self.value_close)

    def read_one(self, s: Scanner, calls: Calls) -> Scan[bool]:
        yield from s.space()
        tags = self.key_open, self.close
        name, end = yield from s.until((self.name_end, *tags))
        name = name.strip()
        if not end or not name or any(c.isspace() or c in "<>{}" for c in name):
            return False
        if end not in tags:
            end = yield from s.after_space(*tags)
        if not end:
            return False
        calls.begin(name)
        calls.add("{")
        before = ""
        while end == self.key_open:
            if not (yield from self._read_argument(s, calls, name, before)):
                return False
            before, end = ", ", (yield from s.after_space(*tags))
        if end:
            calls.add("}")
        return bool(end) and calls.end()

    def _read_argument(self, s: Scanner, calls: Calls, name: str, before: str) -> Scan[bool]:
        key, end = yield from s.until(self.key_ends)
        if not end:
            return False
        key = key.strip()
        if self.value_open and not (yield from s.after_space(self.value_open)):
            return False
        calls.add(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        types = types_of(properties_of(calls.functions.get(name)).get(key))
        if types == {"string"} or (end == self.text_key and end):
            return (yield from self._read_string(s, calls))
        parts: list[str] = []
        if not (yield from s.copy((self.value_close,), parts.append)):
            return False
        calls.add(typed_value("".join(parts), types, lines=self.lines))
        return True

    def _read_string(self, s: Scanner, calls: Calls) -> Scan[bool]:
        """Read a text value and emit it as it arrives."""
        newline, fresh = "", True

        def give(text: str) -> None:
            nonlocal newline, fresh
            if self.lines:
                text = newline + (text.removeprefix("\n") if fresh else text)
                newline = "\n" if text.endswith("\n") else ""
                text = text.removesuffix("\n")
            fresh = False
            calls.add(json_inside(text))

        calls.add('"')
        whole = yield from s.copy((self.value_close,), give)
        calls.add('"')
        return bool(whole)


# -- as in Python ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PythonCalls(CallForm):
    """`[NAME(key='text', n=3)]` between the marks."""

    def spoken(self, functions: Sequence[Mapping[str, Any]]) -> list[str]:
        return [self.open, f"[{', '.join(map(_as_python, functions))}]", self.close]

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        yield from s.after_space("[")
        while True:
            yield from s.space()
            if not (yield from _read_python(s, calls, r"((?!\d)[\w.]+)")):
                return False
            if not (yield from s.after_space(",")):
                break
        yield from s.accept("]")
        yield from s.after_space(self.close)
        return True


def _as_python(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    known = arguments if isinstance(arguments, dict) else {"arguments": arguments}
    written = (
        f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)}"
        for key, value in known.items()
    )
    return f"{function['name']}({', '.join(written)})"


def _read_python(s: Scanner, calls: Calls, head: str) -> Scan[bool]:
    """Read a call in Python's form, `NAME(a=1, b='x')`. head: pattern of all before the bracket; its group is the name."""
    text, bracket = yield from s.until(("(",))
    match = re.fullmatch(head, text.strip())
    if not bracket or not match:
        return False
    calls.begin(match[1])
    calls.add("{")
    before = ""
    while True:
        if (yield from s.after_space(")")):
            calls.add("}")
            return calls.end()
        key, found = yield from s.until(("=", ")", ","))
        if found != "=":
            return False
        calls.add(f"{before}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        if not (yield from read_json(s, calls.add)):
            return False
        yield from s.after_space(",")
        before = ", "
