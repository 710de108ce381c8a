"""Command lines of pages and recipes, read by the real parsers; nothing is run."""

from collections.abc import Sequence
from typing import Any

import click

from pyspec.cli.command import layers
from pyspec.cli.main import cli

CHECKED = (
    click.Choice, click.IntRange, click.FloatRange, type(click.INT), type(click.FLOAT),
)  # fmt: skip
"""Types of options whose values are checked; of others, such as paths, nothing has to exist."""


def read_command(
    words: Sequence[str], command: click.Command = cli
) -> tuple[click.Command, dict[str, Any]]:
    """Have a click command, `pyspec` itself by default, read words. Returns the subcommand with what was given.

    Raises UsageError for what there is not.
    """
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, found, words = command.resolve_command(context, list(words))
        command, context = found, click.Context(found, context, name)
    given, rest, _ = command.make_parser(context).parse_args(list(words))
    for parameter in command.params:
        value = given.get(parameter.name)
        values = value if isinstance(value, (list, tuple)) else [value]
        if isinstance(parameter.type, CHECKED) or getattr(parameter.type, "func", None) is layers:
            for each in values:
                if isinstance(each, str) and not each.isupper():  # no place-holder such as SECONDS
                    parameter.type.convert(each, parameter, context)
    if rest:
        raise click.UsageError(f"{rest} is too much", context)
    return command, given
