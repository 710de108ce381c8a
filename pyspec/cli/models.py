"""`pyspec models`: list, pull, path and info of model files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console
from rich.table import Table

from pyspec.cli.measuring import run_progress
from pyspec.cli.options import physical_cores
from pyspec.cli.progress import store_progress
from pyspec.errors import ModelNotFound, PyspecError
from pyspec.measure.types import all_types, best_type, type_table
from pyspec.store.convert import (
    CONVERSIONS,
    ORIGINAL,
    convert,
    converted,
    read_record,
    variant_path,
)
from pyspec.store.fetch import Progress, cached, fetch
from pyspec.store.fingerprint import file_sha256
from pyspec.store.gguf import SCALARS, STRING, Array, Header
from pyspec.store.header import read_header
from pyspec.store.locate import find, resolve
from pyspec.store.manifest import Entry, HuggingFace, PypiWheel, Shipped, load_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["models"]

_MOST_TEMPLATE = 2048
_MOST_VALUE = 100
_TEMPLATE = "tokenizer.chat_template"
T = TypeVar("T")


class _Sentences(click.Group):
    """A group whose expected failures are one sentence on stderr."""

    def invoke(self, ctx: click.Context) -> object:
        """Runs the subcommand; PyspecError becomes a sentence and its exit code."""
        try:
            return super().invoke(ctx)
        except PyspecError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_Sentences)
def models() -> None:
    """Known models: what there is, fetching, converting, looking inside."""


@models.command("list")
def list_models() -> None:
    """List the known models and what of them is on this machine."""
    manifest = load_manifest()
    table = Table(box=None, pad_edge=False)
    for column in ("name", "role", "MB", "licence", "here", "what"):
        table.add_column(column, justify="right" if column == "MB" else "left", overflow="fold")
    for entry in manifest.model:
        star = " (default)" if entry.name == manifest.default_target else ""
        table.add_row(entry.name + star, entry.role, f"{entry.size / 1e6:.0f}", entry.licence,
                      _state(entry), entry.summary)  # fmt: skip
        for kind in CONVERSIONS:
            path = converted(entry, kind)
            if path is not None:
                size = f"{path.stat().st_size / 1e6:.0f}"
                made = f"converted from {entry.name}"
                table.add_row(f"{entry.name}-{kind}", entry.role, size, entry.licence, "yes", made)
    _stdout().print(table)


def _stdout() -> Console:
    # Piped output keeps whole lines: a script that reads the table must not find names folded.
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=200)


def _state(entry: Entry) -> str:
    if cached(entry) is not None:
        return "shipped" if isinstance(entry.source, Shipped) else "yes"
    return "missing" if isinstance(entry.source, Shipped) else "no"


@models.command()
@click.argument("name")
@click.option(
    "--as",
    "kind",
    type=click.Choice([*sorted(CONVERSIONS), ORIGINAL, "auto"]),
    help="Convert to this tensor type (beside the original); the name is then NAME-TYPE. "
    "auto measures all of them on this machine; original leaves the file as it comes.",
)
def pull(name: str, kind: str | None) -> None:
    """Fetch a model into the cache, verify it, and print its path."""
    manifest = load_manifest()
    if (entry := find(name, manifest)) is None:
        resolve(name)  # raises for a name that is not known
        raise ModelNotFound(f"{name} is a file here already, there is nothing to fetch")
    if kind is None:
        _echo_path(_with_progress(lambda show: resolve(name, show)))
        return
    if isinstance(entry.source, HuggingFace) and not entry.sha256:
        raise click.UsageError("--as works for models of the manifest only")
    if kind == "auto":
        kind = _measured_type(entry)
    if kind == ORIGINAL:
        _echo_path(_with_progress(lambda show: fetch(entry, show)))
        return
    made = _with_progress(lambda show: convert(entry, kind, show))
    if (record := read_record(made)) is not None:
        click.echo(f"{entry.name}-{kind}: {record.note}", err=True)
    _echo_path(made)


def _measured_type(entry: Entry) -> str:
    """The type that measures best here; of the other files only those stay that were there."""
    there = {kind for kind in CONVERSIONS if converted(entry, kind) is not None}
    with store_progress() as show, run_progress() as report:
        found = all_types(entry, physical_cores(), show, report)
    click.echo(type_table(found), err=True)
    best = best_type(found).kind
    for kind in set(CONVERSIONS) - there - {best, entry.convert}:
        path = variant_path(entry.name, kind)
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
    return best


def _echo_path(path: Path) -> None:
    click.echo(os.fsencode(path))  # bytes: a name that is not UTF-8 comes out as it is


def _with_progress(work: Callable[[Progress], T]) -> T:
    with store_progress() as show:
        return work(show)


@models.command()
@click.argument("name", required=False)
def path(name: str | None) -> None:
    """Print the path of a model, fetching it if need be; without NAME, of the default target."""
    _echo_path(_with_progress(lambda show: resolve(name, show)))


@models.command()
@click.argument("name")
def info(name: str) -> None:
    """Show what a model file says about itself. NAME is a known name or a path."""
    manifest = load_manifest()
    entry = manifest.get(name)
    if entry is not None and cached(entry) is None:
        _say_entry(entry)
        click.echo(f"not on this machine; fetch it with `pyspec models pull {name}`")
        return
    found = cached(entry) if entry is not None else None
    header = read_header(found or resolve(name))
    if entry is not None:
        _say_entry(entry)
    _say_file(header)
    _say_metadata(header)


def _say(label: str, value: object) -> None:
    click.echo(f"{label:<12} {value}")


def _say_entry(entry: Entry) -> None:
    _say("name", f"{entry.name} ({entry.role})")
    _say("licence", entry.licence)
    if isinstance(entry.source, PypiWheel):
        _say("source", ", ".join(f"{p.package}=={p.version}" for p in entry.source.parts))
    if entry.for_target:
        _say("fits", ", ".join(entry.for_target))
    made = [kind for kind in CONVERSIONS if variant_path(entry.name, kind).exists()]
    if made:
        _say("converted", ", ".join(f"{entry.name}-{kind}" for kind in made))


def _say_file(header: Header) -> None:
    paths = header.parts or (header.path,)
    for part in paths:
        _say("file", _plain(os.fspath(part), 1000))
        _say("sha256", file_sha256(part))
    _say("size", f"{sum(p.stat().st_size for p in paths) / 1e6:.1f} MB")
    record = read_record(header.path)
    if record is not None:
        _say("made", record.note)
    _say("format", f"GGUF v{header.version}, architecture {_plain(header.architecture)}")
    _say("vocabulary", f"{header.vocab_size} tokens")
    types = ", ".join(f"{count} {kind}" for kind, count in header.tensor_types().items())
    _say("tensors", f"{len(header.tensors)}: {types}")


def _say_metadata(header: Header) -> None:
    click.echo("metadata")
    for key, value in header.metadata.items():
        if key != _TEMPLATE:
            click.echo(f"  {_plain(key)} = {_shown(value)}")
    template = header.metadata.get(_TEMPLATE)
    if isinstance(template, str):
        # Only ever shown, never rendered: a template from a file is a program.
        click.echo(f"chat template ({len(template)} characters, escaped, not rendered)")
        click.echo(f"  {_plain(template, _MOST_TEMPLATE)}")


def _shown(value: object) -> str:
    if isinstance(value, Array):
        kind = "strings" if value.type == STRING else f"values of {SCALARS[value.type].size} bytes"
        return f"[{value.count} {kind}]"
    return _plain(value) if isinstance(value, str) else str(value)


def _plain(text: str, limit: int = _MOST_VALUE) -> str:
    """`text` in at most `limit` printable ASCII characters; nothing in it can steer a terminal."""
    escaped = text[: limit + 1].encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."
