"""Tool calls that are no JSON objects.

Qwen3-Coder, GLM, Seed-OSS, MiniMax and DeepSeek 3.2 have a tag for each argument. LFM2 calls as in Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspec.text.calls import CallForm, Calls, MarkedCalls, read_python
from pyspec.text.parts import properties_of
from pyspec.text.stream import Scan, Scanner, json_inside, read_json

_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}


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


def types_of(schema: Any) -> set[str]:
    """Return the JSON types that a parameter's schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    found: set[str] = set()
    choices = schema.get("anyOf") or schema.get("oneOf")
    for each in (schema, *(choices if isinstance(choices, list) else ())):
        kind = each.get("type") if isinstance(each, Mapping) else None
        found |= {k for k in (kind if isinstance(kind, list) else [kind]) if isinstance(k, str)}
    values = schema.get("enum")
    if not found and isinstance(values, list):
        found = {_TYPES.get(type(value), "null") for value in values}
    return found


def typed_value(text: str, types: set[str], *, lines: bool = False) -> str:
    """Return a value's text as JSON, of one of the types if possible, else as a string."""
    bare = text.strip()
    value = bare if _type(bare) else _loosely(bare)
    kind = _type(value)
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    if kind and (fits or "string" not in types):
        return value
    if lines:
        text = text.removeprefix("\n").removesuffix("\n")
    return json.dumps(text, ensure_ascii=False)


def _type(text: str) -> str:
    """Return the JSON type of a text; empty if it is not JSON."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return _TYPES.get(type(json.loads(text, parse_constant=refuse)), "null")
    except (ValueError, RecursionError):
        return ""


def _loosely(text: str) -> str:
    """Convert a Python constant, list or dict to JSON; empty for anything else."""
    if text not in ("True", "False", "None") and text[:1] not in ("{", "["):
        return ""
    s, parts = Scanner(), list[str]()
    s.feed(text)
    s.ended = True
    try:
        next(read_json(s, parts.append))  # the text is complete, so it does not wait
    except StopIteration as end:
        return "".join(parts) if end.value and not s.rest.strip() else ""
    return ""


@dataclass(frozen=True)
class PythonCalls(CallForm):
    """`[NAME(key='text', n=3)]` between the marks."""

    def spoken(self, functions: Sequence[Mapping[str, Any]]) -> list[str]:
        return [self.open, f"[{', '.join(map(_as_python, functions))}]", self.close]

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        yield from s.after_space("[")
        while True:
            yield from s.space()
            if not (yield from read_python(s, calls, r"((?!\d)[\w.]+)")):
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
