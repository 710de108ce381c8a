"""Options that shape an answer: a grammar, or a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from pyspec.batch.constrain import schema_grammar
from pyspec.cli.command import TEXT, option, stack
from pyspec.errors import OptionError
from pyspec.grammar import bounded

_FILE = click.Path(path_type=Path, dir_okay=False)

shape_options = stack(
    option("--json-schema", group="Answer", aliases=("-j",), type=TEXT, metavar="FILE|JSON",
           help="Answer with JSON of this schema; {} for any JSON."),
    option("--json-schema-file", group="Answer", aliases=("-jf",), type=_FILE, help="The same, from a file."),
    option("--grammar", group="Answer", type=TEXT, metavar="GBNF", help="Answer with text of this grammar."),
    option("--grammar-file", group="Answer", type=_FILE, help="The same, from a file."),
)  # fmt: skip
"""What an answer must look like."""


def grammar_of(options: Mapping[str, Any]) -> str | None:
    """The grammar that the options describe, or None. Raises InputError for one that cannot be read or is too large."""
    named = [name for name in _READERS if options.get(name) is not None]
    if not named:
        return None
    if len(named) > 1:
        raise OptionError("an answer has one shape", f"leave out all but one of {_names(named)}")
    return _READERS[named[0]](options[named[0]])


def _names(options: list[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in options)


def _schema(text: str) -> str:
    if not text.lstrip().startswith("{"):
        return _schema_file(Path(text))
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the JSON schema is no JSON: {error}", "check its quotes") from None
    return schema_grammar(schema)


def _schema_file(path: Path) -> str:
    text = _read(path)
    if not text.lstrip().startswith("{"):
        raise OptionError(f"{path} holds no JSON object", "a schema begins with {")
    return _schema(text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {error}", "name a readable text file") from None


_READERS: dict[str, Callable[[Any], str]] = {
    "json_schema": _schema,
    "json_schema_file": _schema_file,
    "grammar": bounded,
    "grammar_file": lambda path: bounded(_read(path)),
}
