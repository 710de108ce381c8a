"""Tests are collected on systems that lack what some of them need, and skipped there."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
ABSENT = {"fcntl", "resource", "termios", "tty", "pty", "grp", "pwd"}
OWN = {"helpers/systems.py", "windows/without.py"}


def missing(path: Path) -> set[str]:
    """What a file imports, or calls by its name, that Windows lacks; a file that is for other systems skips itself first."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names} & ABSENT
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} & ABSENT
        elif isinstance(node, ast.Attribute) and node.attr == "mkfifo":
            found.add(node.attr)
    return found


def test_no_file_needs_what_windows_lacks() -> None:
    """One that cannot be imported would end the whole run there before its first test; `helpers/systems.py` skips instead."""
    files = {str(path.relative_to(TESTS).as_posix()): path for path in TESTS.rglob("*.py")}
    named = {name: missing(path) for name, path in files.items() if name not in OWN}
    assert {name: what for name, what in named.items() if what} == {}
