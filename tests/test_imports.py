"""Imports point one way. Parsing every module, so that a lazy import counts too."""

from __future__ import annotations

import ast
import re
import sys
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "pyspec"

# From the top down: a module may import from its own row and from those below it.
LAYERS = [
    ["cli", "__main__", "llm_plugin"],
    ["serve"],
    ["chat", "batch", "measure"],
    ["replace"],
    ["llama"],
    ["pieces"],
    ["generation"],
    ["mirror", "options"],
    ["engine", "drafters", "memory", "profiles", "verdicts", "prompt_cache", "target", "offload"],
    [
        "policy",
        "store",
        "rules",
        "noise",
        "samplers",
        "tokens",
        "account",
        "result",
        "text",
        "text_index",
        "sampling",
        "grammar",
        "display",
        "token_view",
        "notebook",
        "progress",
        "tables",
    ],
    ["_lib", "limits"],
    ["errors", "_native", "_version"],
]
# Beyond the rows: the arithmetic of policies must run without an engine, a model or llama.cpp.
FORBIDDEN = {"policy": {"_lib", "engine", "drafters", "llama_cpp"}, "errors": {"*"}}
ONLY_IMPORTER = {"_native": "_lib"}


def modules() -> list[Path]:
    """Every source file of the package but its front door, which names what it shows."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part(path: Path) -> str:
    """The layer's name a file belongs to: its folder below pyspec/, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def named(path: Path) -> set[str]:
    """Dotted names of everything a file imports, each `from M import N` as M.N."""
    tree = ast.walk(ast.parse(path.read_text()))
    found = [node for node in tree if isinstance(node, ast.ImportFrom) and not node.level]
    return {f"{node.module}.{alias.name}" for node in found for alias in node.names}


def imported(path: Path) -> set[str]:
    """Dotted names a file imports, of pyspec and of others; relative ones made absolute."""
    package = ["pyspec", *path.relative_to(PACKAGE).parent.parts]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= (
                {f"{module}.{alias.name}" for alias in node.names}
                if module == "pyspec"
                else {module}
            )
    return names


def parts_used(path: Path) -> set[str]:
    """Names of the package's parts that a file imports."""
    inside = {name.split(".")[1] for name in imported(path) if name.startswith("pyspec.")}
    return inside & {name for row in LAYERS for name in row}


def row_of(name: str) -> int:
    """Where a part stands, 0 at the top."""
    return next(i for i, row in enumerate(LAYERS) if name in row)


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path: Path) -> None:
    """No module imports from a row above its own."""
    upwards = {name for name in parts_used(path) if row_of(name) < row_of(part(path))}
    assert upwards == set()


def test_no_two_modules_need_each_other() -> None:
    """Inside a row and a room as well: imports for types count, since they tie what has to be read together."""
    dotted = {
        ".".join(["pyspec", *p.relative_to(PACKAGE).with_suffix("").parts]): p for p in modules()
    }
    graph = {
        name: {
            user
            for used in named(path)
            for user in (used, used.rpartition(".")[0])
            if user in dotted and user != name
        }
        for name, path in dotted.items()
    }
    order = tuple(TopologicalSorter(graph).static_order())  # a CycleError names the circle
    assert set(order) == set(dotted)


def test_every_module_has_a_layer() -> None:
    """A new part of the package has to be placed."""
    known = {name for row in LAYERS for name in row}
    assert {part(path) for path in modules()} ^ known == {"_native"}  # a stub alone


@pytest.mark.parametrize("owner", sorted(FORBIDDEN))
def test_some_know_less(owner: str) -> None:
    """Policies know neither engine nor llama.cpp; the exceptions know nothing."""
    for path in modules():
        if part(path) != owner:
            continue
        used = parts_used(path) | {name.split(".")[0] for name in imported(path)} - {"pyspec"}
        outside = {"__future__"} if FORBIDDEN[owner] == {"*"} else used - FORBIDDEN[owner]
        assert used - outside == set(), path


@pytest.mark.parametrize("extension", sorted(ONLY_IMPORTER))
def test_one_module_imports_the_extension(extension: str) -> None:
    """Only pyspec/_lib.py touches the C extension."""
    users = {
        part(path) for path in modules() if any(extension in n.split(".") for n in imported(path))
    }
    assert users == {ONLY_IMPORTER[extension]}


def plain(distribution: str) -> str:
    """A distribution's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@pytest.fixture(scope="module")
def installed_by_the_readme() -> set[str]:
    """Other people's modules that `pip install '.[test]'` asks for by name."""
    lines = [line for line in requires("pyspec-llama") or () if "extra" not in line]
    lines += [
        line for line in requires("pyspec-llama") or () if re.search(r"extra == .test.", line)
    ]
    asked = {plain(re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0]) for line in lines}
    return {name for name, of in packages_distributions().items() if asked & set(map(plain, of))}


def needed(path: Path) -> set[str]:
    """Other people's modules that a test cannot be collected without: those that it imports before it may skip itself."""
    body = ast.parse(path.read_text()).body
    may_skip = [n for n, node in enumerate(body) if "importorskip" in ast.unparse(node)]
    heads = body[: may_skip[0]] if may_skip else body
    names = [alias.name for node in heads if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in heads if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: path.stem)
def test_a_test_needs_only_what_the_readme_installs(
    path: Path, installed_by_the_readme: set[str]
) -> None:
    """So it can be collected there: what somebody else happens to install is not counted on."""
    ours = {each.stem for each in TESTS.rglob("*")} | {"pyspec", "bench", "models"}
    assert needed(path) - ours - installed_by_the_readme == set()
