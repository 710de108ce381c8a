"""What is wrong with a body that is no JSON, by the name of the field where it is wrong."""

from __future__ import annotations

import json
import re
from typing import Any

from pyspec.errors import InputError

_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which is no character."""

_STRINGS = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)(?:"(\s*:)?|\\?\Z)', re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)")


def unreadable(data: bytes, found: str) -> InputError:
    """The error for a body that msgspec cannot read. found: msgspec's words."""
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
    if halves:
        name = halves[0].encode(errors="replace").decode()[:40]
        return InputError(f"{name} has half a character (a lone surrogate)", "send whole ones")
    byte = _BYTE.search(found)
    return InputError(f"the body is no JSON at {_field(data[: int(byte[1])] if byte else b'')}")


def _field(before: bytes) -> str:
    """The last name of a member in a part of a body."""
    strings = _STRINGS.findall(before.decode(errors="replace"))
    return next((name[:40] for name, colon in reversed(strings) if colon), "the body")
