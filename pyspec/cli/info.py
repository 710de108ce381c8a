"""`pyspec info`: what this build of pyspec and llama.cpp can do."""

from __future__ import annotations

import click
import llama_cpp

from pyspec._version import __version__
from pyspec.cli.command import Subcommand
from pyspec.store.machine import default_threads, extra_buffers_known, has_amx
from pyspec.store.paths import cache_dir


@click.command(cls=Subcommand)
def info() -> None:
    """Print versions, the backends this build has, and where models are kept."""
    click.echo(f"pyspec            {__version__}")
    click.echo(f"llama-cpp-python  {llama_cpp.__version__}")
    click.echo(f"offload to GPU    {'yes' if llama_cpp.llama_supports_gpu_offload() else 'no'}")
    for name in backends():
        click.echo(f"backend           {name}")
    click.echo(f"extra buffers     {_extra_buffers()}")
    click.echo(f"threads           {default_threads()}")
    click.echo(f"cache             {cache_dir()}")


def _extra_buffers() -> str:
    """What was found out about llama.cpp's own layouts of weights."""
    known = extra_buffers_known("auto")
    if known is None:
        return "not tried yet; this processor has AMX" if has_amx() else "used"
    return (
        "used; tried here" if known else "left off: llama.cpp crashes with them on this processor"
    )


def backends() -> list[str]:
    """The backends compiled in with their features, as llama.cpp prints them."""
    text = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    named = [part.strip() for part in text.split("|")]
    groups: list[list[str]] = []
    for part in named:
        if " : " in part:
            groups.append([part])
        elif part and groups:
            groups[-1].append(part)
    return [", ".join(group) for group in groups]
