"""`pyspec models` and `pyspec draft`: which models there are, what is in them, and which of them draft for a target."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from pyspec.cli.command import Subcommand, command, model_names, tell
from pyspec.errors import ModelNotFound
from pyspec.gguf.header import facts_of, read_header
from pyspec.gguf.kinds import MTP, refuse_other_kinds, unused_heads, why_plain
from pyspec.gguf.reader import SCALARS, STRING, Array, Header
from pyspec.hub.drafts import LARGEST, Candidate, candidates, drafts_here, made_for, own_head
from pyspec.hub.fetch import (
    CONVERSIONS,
    ORIGINAL,
    Progress,
    convert,
    convertible,
    fetch,
    read_provenance,
)
from pyspec.hub.locate import find_here, found_here, remove, resolve
from pyspec.hub.locate import pull as fetch_repo
from pyspec.hub.sources import (
    PREFIX,
    ChatModel,
    Entry,
    Manifest,
    find_chat,
    hub_repo,
    load_manifest,
    search,
)
from pyspec.machine.files import as_text, file_sha256, show
from pyspec.machine.others import LocalModel
from pyspec.sampling.options import suggested_by, suggestion
from pyspec.screen import busy, print_listing, store_progress
from pyspec.text.parts import safe

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_LONGEST = 100  # text of a file that is shown, characters


class _Models(click.Group):
    command_class = Subcommand


@click.group(cls=_Models, invoke_without_command=True)
@click.pass_context
def models(ctx: click.Context) -> None:
    """List, fetch, remove and inspect models: pyspec's own, and those of ollama, LM Studio and the Hugging Face cache."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_models, as_json=False, only_here=False)


@models.command("list", short_help="List the models on this machine, and known ones to fetch.")
@_AS_JSON
@click.option("--here", "only_here", is_flag=True, help="Only models on this machine.")
def list_models(as_json: bool, only_here: bool) -> None:
    """List the models on this machine, whichever program fetched them, and known ones to fetch.

    Each name works with -m, --draft and --companion.
    """
    manifest = load_manifest()
    with busy("reading model files"):
        rows = [_row(manifest, found, found.origin, found.path) for found in found_here(manifest)]
    if not only_here:
        listed = {row["name"] for row in rows}
        absent = (entry for entry in manifest.model if entry.name not in listed)
        rows += [_row(manifest, entry, "to fetch", size=entry.size) for entry in absent]
    if as_json:
        tell(json.dumps(rows, indent=1))
        return
    print_listing(("name", "role", "GB", "type", "origin", "what"), map(_cells, rows))
    tell(f"* the default when -m is not given: {manifest.default_target}", err=True)
    tell("`pyspec models search` lists chat models to fetch by short names", err=True)


def _cells(row: dict[str, Any]) -> list[str]:
    role = row["role"] + ("*" if row["default"] else "")
    named = [row[key] or "-" for key in ("type", "origin")]
    return [row["name"], role, f"{row['size'] / 1e9:.2f}", *named, row["summary"]]


def _row(
    manifest: Manifest, model: LocalModel | Entry, origin: str, path: Path | None = None, size: int = 0
) -> dict[str, Any]:  # fmt: skip
    facts = facts_of(path) if path else None
    if path is not None:
        size = facts.size if facts else path.stat().st_size
    return {
        "name": model.name, "default": model.name == manifest.default_target, "role": model.role, "origin": origin,
        "here": path is not None, "path": str(path) if path else None, "size": size, "type": facts.type if facts else "",
        "architecture": facts.architecture if facts else "", "licence": model.licence,
        "summary": model.summary or (facts.name if facts else "not a readable model"),
    }  # fmt: skip


@models.command(short_help="Fetch a model if needed, and print its path.")
@click.argument("name", default=lambda: load_manifest().default_target, shell_complete=model_names)
@click.option(
    "--as", "kind", type=click.Choice([*sorted(CONVERSIONS), ORIGINAL]),
    help="Convert one of pyspec's known models to this tensor type as NAME-TYPE, and keep the original. "
    "original converts nothing.",
)  # fmt: skip
@click.option(
    "--draft", is_flag=True, help="Fetch the suggested draft of a model of `pyspec models search` too.",
)  # fmt: skip
def pull(name: str, kind: str | None, draft: bool) -> None:
    """Fetch a model into the cache, verify it and print its path.

    NAME is a known name, a short one of `pyspec models search` such as qwen3:4b, OWNER/REPO[:TYPE],
    hf:OWNER/REPO/FILE.gguf[@REVISION] or the URL of one of them; without it, the default target.
    """
    chat = find_chat(name) if kind is None else None
    if chat is not None:
        _pull_chat(chat, draft, find_here(name))
        return
    known = load_manifest().get(name)
    with store_progress() as show:
        made = _pulled(name, kind, show)
    if known is not None and known.role == "target":
        tell(f"next: `pyspec chat -m {made.stem if kind else name}`", err=True)
    _echo_path(made)


def _pull_chat(chat: ChatModel, wanted: bool, here: LocalModel | None) -> None:
    """Fetch a model of the catalogue, named with size and licence first, and its draft or say how that is fetched.

    here: a local model that the name means already, from whichever program.
    """
    here = here or find_here(chat.model.removeprefix(PREFIX))
    if here is not None:
        tell(f"{chat.full} is here already, as {here.name}", err=True)
        made = here.path
    else:
        tell(f"{chat.full}: {chat.model}, {chat.size / 1e9:.2f} GB, {chat.licence}", err=True)
        with store_progress() as show:
            made = resolve(chat.model, show)
    if chat.draft and find_here(chat.draft.removeprefix(PREFIX)) is None:
        if wanted:
            with store_progress() as show:
                resolve(chat.draft, show)
        else:
            tell(f"`pyspec models pull {chat.draft}` fetches its draft", err=True)
    tell(f"next: `pyspec chat -m {chat.full}`", err=True)
    _echo_path(made)


@models.command("search", short_help="List chat models to fetch.")
@click.argument("words", nargs=-1)
@_AS_JSON
def search_models(words: tuple[str, ...], as_json: bool) -> None:
    """List chat models to fetch, those with all WORDS in name, repository or licence.

    `pyspec models pull NAME` fetches one, with --draft its draft too.
    """
    found = sorted(search(words), key=lambda each: each.size)
    if as_json:
        told = [{**msgspec.to_builtins(each), "name": each.full} for each in found]
        tell(json.dumps({"models": told}, indent=1))
        return
    if not found:
        hint = "`pyspec models search` lists all; -m takes OWNER/REPO[:TYPE] of the hub"
        raise ModelNotFound(f"no chat model has {' '.join(words)}", hint)
    print_listing(("name", "GB", "GB in memory", "licence", "draft"), map(_chat_cells, found))
    tell("`pyspec models pull NAME` fetches one", err=True)


def _chat_cells(chat: ChatModel) -> list[str]:
    draft = chat.draft.removeprefix(PREFIX).rpartition("/")[2] or "-"
    sizes = [f"{nbytes / 1e9:.2f}" for nbytes in (chat.size, chat.memory)]
    return [chat.full, *sizes, chat.licence, draft]


def _pulled(name: str, kind: str | None, show: Progress) -> Path:
    if kind is not None:
        entry = convertible(name)
        return fetch(entry, show) if kind == ORIGINAL else convert(entry, kind, show)
    known = load_manifest().get(name) is not None or Path(name).exists()
    return fetch_repo(name, show) if not known and hub_repo(name) else resolve(name, show)


def _echo_path(path: Path) -> None:
    tell(os.fsencode(path))  # as bytes, so that a name that is not UTF-8 is printed unchanged


@models.command("rm", short_help="Remove models from pyspec's own cache.")
@click.argument("names", nargs=-1, required=True, shell_complete=model_names)
def remove_models(names: tuple[str, ...]) -> None:
    """Remove fetched and converted models from pyspec's own cache. Models of other programs are never touched."""
    for name in names:
        tell(remove(name), err=True)


@models.command()
@click.argument("name", shell_complete=model_names)
def info(name: str) -> None:
    """Show the metadata of a model file. NAME is a known name or a path."""
    entry = load_manifest().get(name)
    here = None if entry is None else find_here(name)
    if entry is not None and here is None:
        raise ModelNotFound(f"{name} is not here", f"fetch it with `pyspec models pull {name}`")
    header = read_header(resolve(name) if here is None else here.path)
    if entry is not None:
        tell(f"{'name':<12} {entry.name} ({entry.role})")
        tell(f"{'licence':<12} {entry.licence}")
    for label, fact in _of_file(header, name):
        tell(f"{label:<12} {fact}")
    tell("metadata")
    for key, value in header.metadata.items():
        tell(f"  {show(key, _LONGEST)[1:-1]} = {_shown(value)}")


def _of_file(header: Header, name: str) -> Iterator[tuple[str, str]]:
    paths = header.parts or (header.path,)
    for part in paths:
        yield "file", shlex.quote(safe(as_text(part)))
        yield "sha256", file_sha256(part)
    yield "size", f"{sum(p.stat().st_size for p in paths) / 1e6:.1f} MB"
    if (record := read_provenance(header.path)) is not None:
        made = f"requantised from {record.source} by llama.cpp"
        yield "made", f"{made}; the weights are rounded once more, so answers can differ a little"
    yield "format", f"GGUF v{header.version}, architecture {show(header.architecture)[1:-1]}"
    yield "vocabulary", f"{header.vocab_size} tokens"
    if told := suggestion(suggested_by(header.path, name)):
        yield "suggests", told
    types = ", ".join(f"{count} {kind}" for kind, count in header.tensor_types().items())
    yield "tensors", f"{len(header.tensors)}: {types}"


def _shown(value: object) -> str:
    if isinstance(value, Array):
        kind = "strings" if value.type == STRING else f"values of {SCALARS[value.type].size} bytes"
        return f"[{value.count} {kind}]"
    return show(value, _LONGEST) if isinstance(value, str) else str(value)


# -- drafts for a target -----------------------------------------------------------------------------------------------


EXAMPLES = [
    ("pyspec draft -m llama3.1:8b", "Drafts for a model from ollama"),
    ("pyspec measure -m llama3.1:8b", "Whether it pays on this machine"),
]


@command(examples=EXAMPLES)
@click.option(
    "-m", "--model", metavar="NAME|FILE", shell_complete=model_names, help="The model; if not given, the default one.",
)  # fmt: skip
@_AS_JSON
def draft(model: str | None, as_json: bool) -> None:
    """Find drafts for a model: files beside it, models here with the same vocabulary, then known ones to fetch.

    The share is roughly the cost of a draft step relative to a step of the target; drafts above a third hardly pay.
    """
    with store_progress() as progress:
        target = resolve(model, progress)
    with busy("reading model files"):
        read_header(target)  # raises what is wrong with the file
        refuse_other_kinds(target)
        rows = _drafts(target)
        auto = _auto(target, rows)
    if as_json:
        tell(msgspec.json.format(msgspec.json.encode(rows, enc_hook=str), indent=1))
        return
    _list(target, rows)
    if unused := unused_heads(target):
        tell(unused)
    tell(f"--draft auto, the default, {_does(target, auto)}")
    tell(f"use: {_command(model, rows, auto)}")


def _does(target: Path, auto: Candidate | None) -> str:
    if auto is None:
        return "decodes plainly" if why_plain(target) else "uses lookup alone"
    return f"uses {safe(auto.name)}{', its own head' if auto.name == MTP else ''}"


def _list(target: Path, rows: list[Candidate]) -> None:
    if not rows:
        unknown = "no draft is known for this model; lookup drafts repeated text without one"
        tell(why_plain(target) or unknown)
        return
    cells = (
        (
            row.name, f"{row.size / 1e9:.2f}" if row.size else "-", f"{100 * row.share:.0f} %" if row.size else "-", row.origin,
            row.licence or "-", row.note or "-",
        )
        for row in rows
    )  # fmt: skip
    print_listing(("draft", "GB", "share", "origin", "licence", "what"), cells)


def _drafts(target: Path) -> list[Candidate]:
    """List drafts, each file once: the target's own head, then those made for it, then others. Empty if none can work."""
    if why_plain(target):
        return []
    rows = [*own_head(target), *made_for(target)]
    named = {each.name for each in rows}
    return [*rows, *(each for each in candidates(target) if each.name not in named)]


def _auto(target: Path, rows: list[Candidate]) -> Candidate | None:
    """Return the draft that `auto` tries first."""
    if not rows or rows[0].name == MTP:
        return rows[0] if rows else None
    if shipped := [each for each in made_for(target) if each.path]:
        return shipped[0]
    found = next(drafts_here(target), None)
    return next((row for row in rows if found and row.path == found.path), None)


def _command(model: str | None, rows: list[Candidate], auto: Candidate | None) -> str:
    """Return a command to run as it is: a chat, or what fetches a small draft where none is here. Larger ones hardly pay."""
    small = [row for row in rows if row.share <= LARGEST]
    if auto is None and small:
        return f"pyspec models pull {shlex.quote(small[0].name)}"
    return "pyspec chat" + (f" -m {shlex.quote(model)}" if model else "")
