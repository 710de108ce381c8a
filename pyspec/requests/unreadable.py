"""What is wrong with a body that is no JSON, by the name of the field where it is wrong."""

from __future__ import annotations

import json
import re
from typing import Any

from pyspec.errors import InputError

_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which is no character."""

_NAMES = re.compile(rb'"([\w$.-]{1,40})"\s*:')
"""Names of members; within a text, quotes have a backslash before them."""

_MOST = 1 << 20
# bytes of a body to read a second time: other requests wait meanwhile

_BYTE = re.compile(r"\(byte (\d+)\)")


def unreadable(data: bytes, found: str) -> InputError:
    """The error for a body that msgspec cannot read. found: msgspec's words."""
    if len(data) > _MOST:
        return InputError("the body is no JSON in UTF-8, or not all of it", "send all of it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return InputError(
            f"{_field(data[: error.start])} has bytes that are not UTF-8", "send UTF-8"
        )
    halves: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            texts = [key, *value] if isinstance(value, list) else [key, value]
            halves.extend(key for each in texts if isinstance(each, str) and _HALF.search(each))

    try:
        json.loads(text, object_pairs_hook=look)
    except RecursionError:
        return InputError("the body is nested too deep")
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string") or not text[error.pos :].strip():
            return InputError(f"the body ends within {_field(data)}", "send all of it")
        return InputError(f"the body is no JSON at {_field(text[: error.pos].encode())}")
    byte, hint = _BYTE.search(found), ""
    message = f"the body is no JSON at {_field(data[: int(byte[1])] if byte else b'')}"
    if halves:
        name = halves[0].encode(errors="replace").decode()[:40]
        message, hint = f"{name} has half a character (a lone surrogate)", "send whole ones"
    return InputError(message, hint)


def _field(before: bytes) -> str:
    """The last name of a member in a part of a body."""
    names = _NAMES.findall(before)
    return names[-1].decode() if names else "the body"
