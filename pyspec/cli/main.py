"""The command `pyspec`: its subcommands, and how errors end it."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from pyspec._version import __version__
from pyspec.errors import PyspecError

_COMMANDS = {
    "generate": "Answer one prompt.",
    "chat": "Talk with a model.",
    "batch": "Answer many prompts from files.",
    "profile": "Measure this machine and a pair of models.",
    "bench": "Compare modes and peers on questions.",
    "quality": "Measure what the margin rule costs in quality.",
    "models": "List, fetch and look at models.",
    "info": "Say what this build can do.",
}


class _Lazy(click.Group):
    """Imports a subcommand when it is called, so that `--help` needs no model library."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command = getattr(import_module(f"pyspec.cli.{name}"), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pyspec")
def cli() -> None:
    """Speculative decoding for GGUF models: the answer on stdout, all else on stderr."""


def main(args: list[str] | None = None) -> None:
    """Run the command line; every expected error is one sentence and an exit code."""
    try:
        # not cli.main(): that would answer a closed pipe itself
        with cli.make_context("pyspec", list(sys.argv[1:] if args is None else args)) as context:
            answer = cli.invoke(context)  # a command may return its exit code
        sys.stdout.flush()
        code = answer if isinstance(answer, int) else 0
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except PyspecError as error:
        click.echo(f"pyspec: {error}", err=True)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort, EOFError):
        code = 130
    except BrokenPipeError:
        # the reader has gone: nothing more can be said, and Python shall not try at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 141
    sys.exit(code)
