"""`pyspec models`: what is on this machine, and what can be fetched, converted, added, removed and looked into."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from pyspec.cli.command import Subcommand, model_names
from pyspec.cli.streams import busy, run_progress, stdout_console, store_progress
from pyspec.display import safe
from pyspec.errors import ModelNotFound
from pyspec.store.fetch import (
    CONVERSIONS,
    ORIGINAL,
    Progress,
    cached,
    convert,
    converted,
    drop_conversions,
    fetch,
    read_provenance,
    variant_path,
)
from pyspec.store.files import file_sha256
from pyspec.store.gguf import SCALARS, STRING, Array, Header
from pyspec.store.header import facts_of, read_header
from pyspec.store.locate import add, found_here, remove, resolve
from pyspec.store.locate import pull as fetch_repo
from pyspec.store.machine import default_threads
from pyspec.store.manifest import Entry, Manifest, PypiWheel, Shipped, load_manifest
from pyspec.store.others import Found
from pyspec.store.remote import hub_repo

_MOST_TEMPLATE = 2048
_MOST_VALUE = 100
_TEMPLATE = "tokenizer.chat_template"


@click.group()
def models() -> None:
    """List, fetch, add, remove and look at models: pyspec's own, and those of ollama, LM Studio and the hub's caches."""


_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@models.command("list", cls=Subcommand)
@_AS_JSON
@click.option(
    "--here", "only_here", is_flag=True, help="Leave out what is known and not on this machine."
)
def list_models(as_json: bool, only_here: bool) -> None:
    """List the models on this machine, whoever fetched them, and those that are known and can be fetched.

    Each name works behind -m, --draft and --companion.
    """
    manifest = load_manifest()
    with busy("looking into the files"):
        rows = [_row(*each, manifest) for each in found_here(manifest)]
    if not only_here:
        listed = {row["name"] for row in rows}
        rows += [_known_row(e, manifest) for e in manifest.model if e.name not in listed]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "role", "MB", "type", "architecture", "origin", "licence", "what"):
        table.add_column(column, justify="right" if column == "MB" else "left", overflow="fold")
    for row in rows:
        star = " (default)" if row["default"] else ""
        table.add_row(
            safe(row["name"]) + star, row["role"], f"{row['size'] / 1e6:.0f}", row["type"] or "-",
            safe(row["architecture"]) or "-", row["origin"], row["licence"] or "-", safe(row["summary"]),
        )  # fmt: skip
    stdout_console().print(table)


def _row(found: Found, entry: Entry | None, summary: str, manifest: Manifest) -> dict[str, Any]:
    facts = facts_of(found.path)
    return {
        "name": found.name,
        "default": found.name == manifest.default_target,
        "role": entry.role if entry else "target",
        "origin": found.origin,
        "here": True,
        "path": str(found.path),
        "size": facts.size if facts else found.path.stat().st_size,
        "type": facts.type if facts else "",
        "architecture": facts.architecture if facts else "",
        "licence": entry.licence if entry else "",
        "summary": summary or (facts.name if facts else "no model that can be read"),
    }


def _known_row(entry: Entry, manifest: Manifest) -> dict[str, Any]:
    return {
        "name": entry.name,
        "default": entry.name == manifest.default_target,
        "role": entry.role,
        "origin": "missing" if isinstance(entry.source, Shipped) else "to fetch",
        "here": False,
        "path": None,
        "size": entry.size,
        "type": "",
        "architecture": "",
        "licence": entry.licence,
        "summary": entry.summary,
    }


@models.command(cls=Subcommand)
@click.argument("name")
@click.option(
    "--as",
    "kind",
    type=click.Choice([*sorted(CONVERSIONS), ORIGINAL, "auto"]),
    help="Convert to this tensor type (beside the original); the name is then NAME-TYPE. "
    "auto measures all of them on this machine; original leaves the file as it comes.",
)
@_AS_JSON
def pull(name: str, kind: str | None, as_json: bool) -> None:
    """Fetch a model into the cache, verify it, and print its path.

    NAME is a known name, OWNER/REPO[:TYPE], hf:OWNER/REPO/FILE.gguf[@REVISION] or the URL of one of them.
    """
    if kind == "auto" and (entry := load_manifest().get(name)) is not None:
        kind = _measured_type(entry)
    with store_progress() as show:
        made = _pulled(name, kind, show)
    if kind is not None and (record := read_provenance(made)) is not None:
        click.echo(f"{made.stem}: {record.note}", err=True)
    _echo_path(made, as_json)


def _measured_type(entry: Entry) -> str:
    """The type that measures best here; of the other files only those stay that were there."""
    from pyspec.measure.costs import all_types, best_type, type_table  # noqa: PLC0415

    there = {kind for kind in CONVERSIONS if converted(entry, kind) is not None}
    with store_progress() as show, run_progress() as report:
        found = all_types(entry, default_threads(), show, report)
    click.echo(type_table(found), err=True)
    best = best_type(found).kind
    drop_conversions(entry, set(CONVERSIONS) - there - {best})
    return best


def _pulled(name: str, kind: str | None, show: Progress) -> Path:
    entry = load_manifest().get(name)
    if kind is not None:
        if entry is None:
            raise click.UsageError("--as works for models of the manifest only")
        return fetch(entry, show) if kind == ORIGINAL else convert(entry, kind, show)
    if entry is not None:
        return resolve(name, show)
    if hub_repo(name) is not None and not Path(name).exists():
        return fetch_repo(name, show)
    resolve(name)  # raises for a name that is not known
    raise ModelNotFound(f"{name} is a file here already, there is nothing to fetch")


def _echo_path(path: Path, as_json: bool) -> None:
    if as_json:
        size = path.stat().st_size
        click.echo(json.dumps({"path": str(path), "size": size, "sha256": file_sha256(path)}))
        return
    click.echo(os.fsencode(path))  # bytes: a name that is not UTF-8 comes out as it is


@models.command(cls=Subcommand)
@click.argument("name", required=False, shell_complete=model_names)
@_AS_JSON
def path(name: str | None, as_json: bool) -> None:
    """Print the path of a model, fetching it if need be; without NAME, of the default target."""
    with store_progress() as show:
        found = resolve(name, show)
    _echo_path(found, as_json)


@models.command("add", cls=Subcommand)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Its name; the file's without .gguf if not given.")
def add_model(file: Path, name: str | None) -> None:
    """Give a GGUF file a name; the file stays where it is."""
    added = add(file, name)
    click.echo(f"{added.name} is {_plain(os.fspath(added.path), 1000)}", err=True)


@models.command("rm", cls=Subcommand)
@click.argument("names", nargs=-1, required=True, shell_complete=model_names)
def remove_models(names: tuple[str, ...]) -> None:
    """Remove fetched and converted models from pyspec's own cache, or the name of an added file.

    Models of other programs are left to them.
    """
    for name in names:
        click.echo(remove(name), err=True)


@models.command(cls=Subcommand)
@click.argument("name", shell_complete=model_names)
@_AS_JSON
def info(name: str, as_json: bool) -> None:
    """Show what a model file says about itself. NAME is a known name or a path."""
    manifest = load_manifest()
    entry = manifest.get(name)
    found = cached(entry) if entry is not None else None
    if entry is not None and found is None:
        if as_json:
            click.echo(json.dumps(_known_row(entry, manifest)))
            return
        _say_entry(entry)
        click.echo(f"not on this machine; fetch it with `pyspec models pull {name}`")
        return
    header = read_header(found or resolve(name))
    if as_json:
        click.echo(json.dumps(_info(header)))
        return
    if entry is not None:
        _say_entry(entry)
    _say_file(header)
    _say_metadata(header)


def _info(header: Header) -> dict[str, Any]:
    facts = facts_of(header.path)
    simple = {k: v for k, v in header.metadata.items() if not isinstance(v, Array)}
    return {
        "path": str(header.path),
        "size": facts.size if facts else header.file_size,
        "sha256": file_sha256(header.path),
        "type": facts.type if facts else "",
        "architecture": header.architecture,
        "vocabulary": header.vocab_size,
        "tensors": header.tensor_types(),
        "metadata": simple,
    }


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
    for part in header.parts:
        _say("file", _plain(os.fspath(part), 1000))
        _say("sha256", file_sha256(part))
    _say("size", f"{sum(p.stat().st_size for p in header.parts) / 1e6:.1f} MB")
    record = read_provenance(header.path)
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
