"""From what a user typed to a file: a path, a name of the manifest, a converted one, a hub file."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from pyspec.errors import ModelNotFound
from pyspec.store.cache import file_sha256, models_dir, stamp
from pyspec.store.cursor import open_regular, show
from pyspec.store.fetch import (
    CONVERSIONS,
    ORIGINAL,
    Progress,
    convert,
    converted,
    fetch,
    no_progress,
    read_provenance,
)
from pyspec.store.manifest import Entry, Manifest, load_manifest
from pyspec.store.remote import PREFIX, find_hub, hub_repo, parse_hub_name
from pyspec.store.shelf import find_here, names

__all__ = ["find", "fitting", "known_as", "pull", "resolve"]

_SHA256 = re.compile(r"[0-9a-f]{64}")


def resolve(model: str | os.PathLike[str] | None = None, progress: Progress = no_progress) -> Path:
    """The file of a model, fetched into the cache if need be; None is the default target.

    `model` is a path; a name of the manifest, or such a name with the type it was converted to
    (`smollm2-135m-instruct-q4_k_m`; `-original` is the file as it comes); a name that another program gives a model
    which is here (`llama3.2:3b`, a file's stem); or a file of the hub: OWNER/REPO[:TYPE],
    `hf:OWNER/REPO/FILE.gguf[@REVISION]`, or its URL. What is here is taken without asking the hub. Raises
    ModelNotFound with near names, ModelUnreadable, or FetchError.
    """
    if isinstance(model, os.PathLike):
        return _existing(Path(model))
    if model is not None and _is_path(model):
        return _existing(Path(model).expanduser())
    manifest = load_manifest()
    name = manifest.default_target if model is None else model
    path = _known(name, manifest, progress) or _variant(name, manifest, progress)
    if path is None and (found := find_here(_bare(name))) is not None:
        path = found.path
    return path or _other(name, progress)


def _known(name: str, manifest: Manifest, progress: Progress) -> Path | None:
    entry = manifest.get(name)
    if entry is None:
        return None
    return (
        fetch(entry, progress) if entry.convert is None else convert(entry, entry.convert, progress)
    )


def _other(name: str, progress: Progress) -> Path:
    """What is none of our names: a file of the hub, or one of this folder."""
    if (entry := parse_hub_name(name)) is not None:
        return fetch(entry, progress)
    if name and _is_there(name):
        return _existing(Path(name))
    return pull(name, progress)


def pull(name: str, progress: Progress = no_progress) -> Path:
    """The file of a hub repository, as the hub has it now. Raises ModelNotFound for what names none."""
    repo = hub_repo(name)
    if repo is None:
        raise _unknown(name)
    progress(f"asking the hub for {repo.name}", 0, 0)
    parts = [fetch(entry, progress) for entry in find_hub(repo)]
    return parts[0]


def _bare(name: str) -> str:
    """A name of the hub without what may stand in front of it."""
    for front in (PREFIX, "hf.co/", "huggingface.co/"):
        name = name.removeprefix(front)
    return name


def find(name: str, manifest: Manifest) -> Entry | None:
    """The entry of a name or of a hub file, or None."""
    return manifest.get(name) or parse_hub_name(name)


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # no permission, a NUL byte
        return False


def _is_path(text: str) -> bool:
    """Whether a text is meant as a path. OWNER/REPO is not, unless there is such a file here."""
    if text.startswith(PREFIX) or "://" in text:
        return False
    separators = {"/", os.sep, os.altsep or "/"}
    if not text.startswith("~") and not text.endswith(".gguf") and separators.isdisjoint(text):
        return False
    return _is_there(text) or (hub_repo(text) is None and find_here(text) is None)


def _existing(path: Path) -> Path:
    fd, _ = open_regular(path)  # raises the right error for what is there
    os.close(fd)
    return path


def _variant(name: str, manifest: Manifest, progress: Progress) -> Path | None:
    for entry in manifest.model:
        kind = name.removeprefix(f"{entry.name}-")
        if kind == ORIGINAL and kind != name:
            return fetch(entry, progress)
        if kind != name and kind in CONVERSIONS:
            path = converted(entry, kind)
            if path is None:
                hint = f"make it with `pyspec models pull {entry.name} --as {kind}`"
                raise ModelNotFound(f"{name} was not made yet", hint)
            return path
    return None


def _unknown(name: str) -> ModelNotFound:
    if name.startswith(PREFIX):
        return ModelNotFound(
            f"{show(name)} names no hub file",
            "write OWNER/REPO:TYPE or hf:OWNER/REPO/FILE.gguf, with @REVISION if you like",
        )
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.4)
    hint = "`pyspec models list` shows all names; a file is given by its path"
    if near:
        hint = f"did you mean {' or '.join(near)}? {hint}"
    return ModelNotFound(f"there is no model {show(name)} and no such file", hint)


def known_as(path: Path, manifest: Manifest) -> Entry | None:
    """The manifest's entry whose weights the file holds, converted ones included, or None.

    Files of another size than any entry are not hashed, so this is quick for large models.
    """
    if path.parent == models_dir() and (record := read_provenance(path)) is not None:
        entry = manifest.get(record.source)
        return entry if entry is not None and entry.sha256 == record.source_sha256 else None
    size = stamp(path).size
    for entry in manifest.model:
        if entry.size == size and file_sha256(path) == entry.sha256:
            return entry
    return None


def fitting(target: Path, role: str, manifest: Manifest | None = None) -> list[Entry]:
    """The drafts or companions (`role`) that the manifest has for a target file."""
    manifest = manifest or load_manifest()
    offers = [entry for entry in manifest.model if entry.role == role and entry.for_target]
    if not offers:
        return []
    known = known_as(target, manifest)
    keys = {known.name, known.sha256} if known is not None else set()
    if any(_SHA256.fullmatch(key) for entry in offers for key in entry.for_target):
        keys.add(file_sha256(target))
    return [entry for entry in offers if keys.intersection(entry.for_target)]
