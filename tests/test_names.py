"""One name for one thing: what the package calls things, checked by reading its sources."""

import ast
import re
from importlib import import_module

import pytest
from helpers.sources import ROOT, modules, rooms

import pyspec
from pyspec import errors

SOURCES = ("pyspec/", "native/", "bench/", "models/", "tests/")
NO_FILES = {"bench/NAME.py", "llama.h"}
"""A placeholder, and llama.cpp's own."""


def test_the_front_door_names_what_it_opens():
    """The three lists of `pyspec/__init__.py` agree: what is offered, where it lives, and what a type checker reads."""
    tree = ast.parse(modules()["pyspec"].read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pyspec.")
        for alias in node.names
    }
    assert set(pyspec.__all__) == imported & set(pyspec.__all__)
    assert set(pyspec._HOMES) <= set(pyspec.__all__)
    assert all(getattr(pyspec, name) is not None for name in pyspec.__all__)


def test_every_exception_is_in_one_place():
    bases = {"Exception", "BaseException", "ValueError", "RuntimeError", "OSError"}
    bases |= {base.__name__ for base in vars(errors).values() if isinstance(base, type)}
    found = [
        (module, node.name)
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(b) in bases for b in node.bases)
    ]
    assert {place for place, _ in found} == {errors.__name__}
    tree = re.findall(r"^ .+", errors.__doc__ or "", re.MULTILINE)
    shown = set(re.findall(r"[A-Z]\w+", " ".join(tree))) - {"ValueError"}
    assert shown - {"PyspecError"} == {of for _, of in found} - {"PyspecError"}


@pytest.mark.parametrize("room", rooms())
def test_a_room_names_what_it_imports(room):
    """`__all__` of a package below has all that its front door imports and nothing else; without imports there is none."""
    tree = ast.parse(modules()[f"pyspec.{room}"].read_text(encoding="utf-8"))
    imported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pyspec.")
        for alias in node.names
    ]
    assert sorted(getattr(import_module(f"pyspec.{room}"), "__all__", [])) == sorted(imported)


def test_each_room_has_its_tests():
    assert set(rooms()) <= {path.parent.name for path in ROOT.glob("tests/*/test_*.py")}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "bench/README.md"])
def test_files_that_a_page_names_are_there(page):
    """A source file that was moved is moved in what newcomers read, too."""
    known = {path.name for folder in SOURCES for path in (ROOT / folder).rglob("*.*")}
    named = re.findall(r"[\w/]+\.(?:py|c|h)\b", (ROOT / page).read_text(encoding="utf-8"))
    paths = {name for name in named if name not in NO_FILES}
    whole = {name for name in paths if name.startswith(SOURCES)}
    assert {name for name in whole if not (ROOT / name).is_file()} == set()
    assert {name for name in paths - whole if name.rpartition("/")[2] not in known} == set()
