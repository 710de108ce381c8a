"""Docstrings as pages show them: a line `name: what it is` becomes an item of a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_NAME = r"`?[a-z_][a-z0-9_]*(?:\[[a-z]\])?`?"
_ITEM = re.compile(rf"^({_NAME}(?:, {_NAME})*): (?=\S)")
_SECTIONS = ("raises", "returns", "args", "note", "yields", "warns", "examples")


class Arguments(griffe.Extension):
    """Makes lists of the arguments that a docstring explains."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of whatever was read."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """The text with a list where lines begin with names and a colon; what is indented under one belongs to it."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        found = _ITEM.match(line)
        if found and found[1] not in _SECTIONS:
            if not inside and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"`{name.strip('` ')}`" for name in found[1].split(","))
            lines.append(f"- {names}: {line[found.end() :]}")
            inside = True
            continue
        if inside and line and not line.startswith(" "):
            lines.append("")
            inside = False
        lines.append(line)
    return "\n".join(lines)
