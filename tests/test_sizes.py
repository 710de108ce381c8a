"""Files and functions that can be read in one go."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("pyspec", "models", "bench")
MAX_FILE, MAX_FUNCTION = 500, 60
LONG = {"pyspec/llama/speculative.py __init__"}
"""Llama's own arguments, one a line, so that editors and type checkers know them; its body has nine lines."""


def sources():
    """The project's own files: what a build makes of them lies elsewhere, and other programs are built in bench/build."""
    found = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    yield from (path for path in found if ROOT / "bench" / "build" not in path.parents)
    yield from sorted((ROOT / "native").glob("*.[ch]"))


def functions(path):
    """Each function's name and its lines, signature and docstring included."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or 0) - node.lineno + 1
        return
    for match in re.finditer(
        r"^[a-z][^\n;]*?(\w+)\([^;{]*\{(?:[^\n]*\}$|\n.*?^\})", text, re.MULTILINE | re.DOTALL
    ):
        yield match[1], match[0].count("\n") + 1


def named(path):
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_too_long():
    """At most 500 lines, tests too: a longer file has two subjects, or a reason that is worth a discussion."""
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "native" / "tests").glob("*.[ch]")]
    paths = [*sources(), *tests]
    lines = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert {name: n for name, n in lines.items() if n > MAX_FILE} == {}


def test_no_function_is_too_long():
    """At most 60 lines, but for those that are listed with a reason."""
    found = {
        f"{named(path)} {name}": n
        for path in sources()
        for name, n in functions(path)
        if n > MAX_FUNCTION
    }
    assert set(found) == LONG
