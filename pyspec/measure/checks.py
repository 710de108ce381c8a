"""What a program can test in an answer.

Each check is an object with `kind`:

json      the answer is one JSON value; `keys`: it is an object with these keys
list      a list of exactly `n` items, each on a line of its own, with a bullet or a number
copy      `text` stands in the answer, exactly but for white space at line ends
number    the last number of the answer is `value`
compiles  the answer's code is Python
tests     the answer's code passes a HumanEval test (`prompt`, `test`, `entry`), in a sandbox
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

from pyspec.errors import InputError
from pyspec.measure.sandbox import passes

if TYPE_CHECKING:
    from collections.abc import Callable

_FENCE = re.compile(r"```[a-zA-Z0-9_+-]*[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+\S", re.MULTILINE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def check(what: dict[str, Any], answer: str) -> bool:
    """Whether an answer passes. Raises InputError for a kind that is not known."""
    kind = what.get("kind")
    if kind not in _CHECKS:
        raise InputError(f"unknown check {kind!r}", f"there are: {', '.join(_CHECKS)}")
    return _CHECKS[kind](what, answer)


def block(answer: str) -> str:
    """The first fenced block of an answer, or all of it; indentation is kept."""
    found = _FENCE.search(answer)
    return found.group(1) if found else answer.strip("\n")


def _json(what: dict[str, Any], answer: str) -> bool:
    try:
        value = json.loads(block(answer))
    except (ValueError, RecursionError):
        return False
    keys = what.get("keys", [])
    return not keys or (isinstance(value, dict) and all(key in value for key in keys))


def _list(what: dict[str, Any], answer: str) -> bool:
    return len(_ITEM.findall(answer)) == int(what["n"])


def _copy(what: dict[str, Any], answer: str) -> bool:
    return _stripped(what["text"]) in _stripped(answer)


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _number(what: dict[str, Any], answer: str) -> bool:
    found = _NUMBER.findall(answer)
    if not found:
        return False
    return abs(float(found[-1].replace(",", "")) - float(what["value"])) < 1e-6


def _compiles(_what: dict[str, Any], answer: str) -> bool:
    try:
        return bool(ast.parse(block(answer)).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _tests(what: dict[str, Any], answer: str) -> bool:
    return passes(program(what, block(answer)))


def program(what: dict[str, Any], code: str) -> str:
    """A HumanEval problem's program: what was answered, its test, and the call of the test.

    An answer that leaves the function's head out is taken as its body.
    """
    head = "" if f"def {what['entry']}" in code else what["prompt"]
    lead = what["prompt"].partition(f"def {what['entry']}")[0] if not head else ""
    return f"{lead}{head}{code}\n\n{what['test']}\n\ncheck({what['entry']})\n"


_CHECKS: dict[str, Callable[[dict[str, Any], str], bool]] = {
    "json": _json,
    "list": _list,
    "copy": _copy,
    "number": _number,
    "compiles": _compiles,
    "tests": _tests,
}
