"""Imports point one way. Parsing every module, so that a lazy import counts too."""

import ast
from graphlib import TopologicalSorter

import pytest
from helpers.sources import ROOT, modules

# From the top down: a module may import from its own row and from those below it.
LAYERS = [
    ["cli", "__main__", "llm_plugin"],
    ["cluster"],
    ["serve"],
    ["chat", "batch"],
    ["llama"],
    ["engine"],
    ["draft", "requests"],
    ["sampling", "screen"],
    ["text"],
    ["grammar"],
    ["vocab"],
    ["hub"],
    ["gguf"],
    ["machine"],
    ["_lib"],
    ["errors", "_native", "_version"],
]
# Beyond the rows: the arithmetic of policies must run without an engine, a model or llama.cpp.
FORBIDDEN = {"draft": {"_lib", "engine", "lookup", "llama_cpp"}, "errors": {"*"}}
ONLY_IMPORTER = {"_native": "_lib"}


MODULES = {name: path for name, path in modules().items() if name != "pyspec"}
"""All but the package's front door, which names what it shows."""


def part(name):
    """The layer that a module belongs to: its room, or its own name."""
    return name.split(".")[1]


def origin(name, node):
    """The module that a `from` of a module names; a relative one made absolute."""
    package = name.split(".")[: None if MODULES[name].name == "__init__.py" else -1]
    above = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*above, *filter(None, [node.module])])


def imported(name):
    """Dotted names of everything a module imports, of pyspec and of others; `from M import N` is M.N."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{origin(name, node)}.{alias.name}" for alias in node.names}
    return found


def parts_used(name):
    """Names of the package's parts that a module imports."""
    inside = {part(each) for each in imported(name) if each.startswith("pyspec.")}
    return inside & {each for row in LAYERS for each in row}


def row_of(name):
    """Where a part stands, 0 at the top."""
    return next(i for i, row in enumerate(LAYERS) if name in row)


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name):
    upwards = {used for used in parts_used(name) if row_of(used) < row_of(part(name))}
    assert upwards == set()


def test_no_two_modules_need_each_other():
    """Inside a row and a room as well: imports for types count, since they tie what has to be read together."""
    graph = {
        name: {
            user
            for used in imported(name)
            for user in (used, used.rpartition(".")[0])
            if user in MODULES and user != name
        }
        for name in MODULES
    }
    order = tuple(TopologicalSorter(graph).static_order())  # a CycleError names the circle
    assert set(order) == set(MODULES)


def test_every_module_has_a_layer():
    known = {name for row in LAYERS for name in row}
    assert set(map(part, MODULES)) ^ known == {"_native"}  # a stub alone


def test_what_only_a_clone_has_is_not_imported():
    """Neither the programs of bench/ nor the recipe: the wheel has none of them."""
    research = {path.stem for path in (ROOT / "bench").iterdir()} - {"serve", "batch"} | {"models"}
    found = {
        name: {each for each in imported(name) if each.split(".")[0] in research}
        for name in MODULES
    }
    assert {name: used for name, used in found.items() if used} == {}
    assert not any("models.recipe" in each for name in MODULES for each in imported(name))


@pytest.mark.parametrize("owner", sorted(FORBIDDEN))
def test_some_know_less(owner):
    """Policies know neither engine nor llama.cpp; the exceptions know nothing."""
    for name in MODULES:
        if part(name) != owner or name == "pyspec.draft.lookup":
            continue
        words = {word for each in imported(name) for word in each.split(".")}
        used = parts_used(name) | words - {"pyspec"}
        outside = (
            {"__future__", "annotations"} if FORBIDDEN[owner] == {"*"} else used - FORBIDDEN[owner]
        )
        assert used - outside == set(), name


@pytest.mark.parametrize("extension", sorted(ONLY_IMPORTER))
def test_one_module_imports_the_extension(extension):
    users = {
        part(name) for name in MODULES if any(extension in n.split(".") for n in imported(name))
    }
    assert users == {ONLY_IMPORTER[extension]}
