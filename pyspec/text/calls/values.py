"""Calls with values in almost-JSON: Gemma 4's, and LFM2's lists of Python-style calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspec.text.calls.form import CallForm
from pyspec.text.calls.objects import read_keywords
from pyspec.text.near_json import read_near_json
from pyspec.text.parts import Calls
from pyspec.text.scan import Scan, Scanner

QUOTE = '<|"|>'


@dataclass(frozen=True)
class GemmaCalls(CallForm):
    """`<|tool_call>call:NAME{key:<|"|>text<|"|>,n:3}<tool_call|>`."""

    opens = ("<|tool_call>",)
    marks = (*opens, "<tool_call|>", QUOTE)

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        """Read one call; return False at anything else."""
        yield from s.space()
        if not (yield from s.accept("call:")):
            return False
        name, end = yield from s.until(("{",), keep=True)
        if not end or not name.strip():
            return False
        calls.begin(name.strip())
        if not (yield from read_near_json(s, calls.add, (QUOTE, '"'))):
            return False
        yield from s.space()
        yield from s.accept(self.marks[1])
        return calls.end()


@dataclass(frozen=True)
class PythonCalls(CallForm):
    """`<|tool_call_start|>[NAME(key='text', n=3)]<|tool_call_end|>`, or objects between these marks."""

    opens = ("<|tool_call_start|>",)
    marks = (*opens, "<|tool_call_end|>")

    def spoken(self, functions: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return calls as the model writes them."""
        return [self.marks[0], f"[{', '.join(map(_as_python, functions))}]", self.marks[1]]

    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        """Read calls up to their closing mark; return False at anything else."""
        yield from s.space()
        yield from s.accept("[")
        while True:
            yield from s.space()
            name, bracket = yield from s.until(("(",))
            if not bracket or not name.strip().replace(".", "_").isidentifier():
                return False
            calls.begin(name.strip())
            if not (yield from read_keywords(s, calls)) or not calls.end():
                return False
            yield from s.space()
            if not (yield from s.accept(",")):
                break
        yield from s.accept("]")
        yield from s.space()
        yield from s.accept(self.marks[1])
        return True


def _as_python(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    known = arguments if isinstance(arguments, dict) else {"arguments": arguments}
    written = (
        f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)}"
        for key, value in known.items()
    )
    return f"{function['name']}({', '.join(written)})"
