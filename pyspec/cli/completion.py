"""`pyspec completion`: what makes bash, zsh or fish complete commands, options and model names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from pyspec.cli.command import Subcommand

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Subcommand,
    examples=[
        ("pyspec completion bash >> ~/.bashrc", "For bash, from the next shell on"),
        ("pyspec completion zsh >> ~/.zshrc", "For zsh"),
        ("pyspec completion fish > ~/.config/fish/completions/pyspec.fish", "For fish"),
    ],
)
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Print the script for SHELL; without it, for the shell in $SHELL."""
    name = shell or Path(os.environ.get("SHELL", "bash")).name
    kind = get_completion_class(name if name in _SHELLS else "bash")
    if kind is not None:
        from pyspec.cli.main import cli  # noqa: PLC0415 - main imports this module by name

        click.echo(_source(kind(cli, {}, "pyspec", "_PYSPEC_COMPLETE")))


def _source(maker: Any) -> str:
    """The script, without click's look at the version of the bash on the PATH: it may be another shell's."""
    return str(maker.source_template % maker.source_vars())


def model_names(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of models that are here or known, and files; for `-m` and `--draft`."""
    from pyspec.store.shelf import names  # noqa: PLC0415 - only when a shell asks

    found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")]
