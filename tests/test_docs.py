"""Commands, options and Python of the pages are those that there are: nothing is run, the real command line reads it."""

import ast
import inspect
import re
import shlex
from importlib import import_module
from pathlib import Path

import click
import pytest
from helpers.command_lines import read_command

from pyspec.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
OWN = [
    "README.md",
    *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob(".docs/pages/*.md"))),
]
OTHERS = ["METHODS.md", "DEVICES.md", "SECURITY.md", "CONTRIBUTING.md", "models/README.md", "bench/README.md"]  # fmt: skip
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"`(-[a-zA-Z-]+)(?:[ =][^`]*)?`")
ENDS = ("|", "&&", ";", ">", ">>", "&", "2>")


def text_of(page):
    """Its Markdown."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, language):
    return [body for kind, body in FENCE.findall(text_of(page)) if kind == language]


def calls(line):
    words = shlex.split(line, comments=True)
    while "pyspec" in words:
        words = words[words.index("pyspec") + 1 :]
        end = next((i for i, word in enumerate(words) if word in ENDS), len(words))
        yield words[:end]
        words = words[end:]


def lines(page):
    """All commands: those of shell blocks, and those named in sentences or in indented blocks."""
    text = text_of(page)
    shell = [line for body in blocks(page, "sh") for line in body.splitlines()]
    named = re.findall(r"`(pyspec [^`\n]+)`", FENCE.sub("", text))
    named += re.findall(r"^ {4}(pyspec .+?)(?: {2,}.*)?$", text, re.MULTILINE)
    return [(words, True) for line in shell for words in calls(line)] + [
        (words, False) for line in named for words in calls(line)
    ]


def examples(group=cli):
    """Those of `--help`."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        found = examples(command) if isinstance(command, click.Group) else command.examples
        yield from found


CASES = [(page, words, whole) for page in [*OWN, *OTHERS] for words, whole in lines(page)]
CASES += [("--help", words, True) for line, _ in examples() for words in calls(line)]


@pytest.mark.parametrize(("page", "words", "whole"), CASES, ids=lambda value: str(value)[:60])
def test_commands_are_there(page, words, whole):
    command, given = read_command(words)
    if whole and not isinstance(command, click.Group):
        missing = [
            each.name for each in command.params if each.required and not given.get(each.name)
        ]
        assert not missing


@pytest.mark.parametrize("page", OWN)
def test_options_in_sentences_are_of_some_command(page):
    known = {"--help", "--extra-index-url"}
    groups = [cli]
    for group in groups:
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            if isinstance(command, click.Group):
                groups.append(command)
            params = command.get_params(click.Context(command))
            known |= {option for each in params for option in (*each.opts, *each.secondary_opts)}
    assert set(OPTION.findall(FENCE.sub("", text_of(page)))) <= known


@pytest.mark.parametrize("page", [*OWN, *OTHERS])
def test_links_lead_to_files(page):
    links = re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)[^)]*\)", text_of(page))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


PYTHON = [(page, body) for page in OWN for body in blocks(page, "python")]


@pytest.mark.parametrize(("page", "body"), PYTHON, ids=lambda value: str(value)[:60])
def test_python_imports_what_there_is(page, body):
    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "pyspec":
            module = import_module(node.module)
            assert all(hasattr(module, each.name) for each in node.names)


def test_a_page_names_every_public_thing():
    import pyspec

    named = set(
        re.findall(r"^::: pyspec\.(\w+)$", text_of(".docs/pages/reference.md"), re.MULTILINE)
    )
    assert set(pyspec.__all__) - {"__version__", "PyspecError"} <= named


REFERENCE = re.findall(
    r"^::: (\S+)(?:\n    options:\n +(?:inherited_)?members: (.*))?", text_of(".docs/pages/reference.md"), re.MULTILINE
)  # fmt: skip


def on_the_reference():
    """Each class and function that the page shows, and the methods that it lists, by name."""
    for name, members in REFERENCE:
        home, _, last = name.rpartition(".")
        thing = getattr(import_module(home), last)
        listed = re.findall(r"\w+", members) if members.startswith("[") else []
        found = {name: thing, **{f"{name}.{each}": getattr(thing, each) for each in listed}}
        yield from ((name, each) for name, each in found.items() if callable(each))


@pytest.mark.parametrize(("name", "thing"), [*on_the_reference()])
def test_the_reference_describes_arguments_that_there_are(name, thing):
    text = re.search(r"^Args:\n((?:    .*\n?)+)", inspect.getdoc(thing) or "", re.MULTILINE)
    described = re.findall(r"^    \**(\w+): ", text[1] if text else "", re.MULTILINE)
    known = {*getattr(thing, "__annotations__", ())}
    if not hasattr(thing, "__total__"):  # Python knows no signature of a TypedDict
        known |= inspect.signature(thing).parameters.keys()
    assert {*described} <= known, name


def test_supported_systems_are_the_classifiers():
    """DEVICES.md says yes of those that the package names, and of no other."""
    rows = re.findall(
        r"^\| (Linux|macOS|Windows) \| (yes|no) \|", text_of("DEVICES.md"), re.MULTILINE
    )
    named = re.findall(r"Operating System :: .*?(\w+)\"", text_of("pyproject.toml"))
    assert len(rows) == 3
    assert {name.lower() for name, yes in rows if yes == "yes"} == {name.lower() for name in named}


def test_the_readme_is_short_and_its_lines_are_too():
    lines = text_of("README.md").splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if len(line) > 140 and not line.startswith("|")] == []
