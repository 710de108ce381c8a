"""From what a user typed to a file: a path, a name of the manifest, a converted one, a hub file."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from pyspec.errors import ModelNotFound
from pyspec.store.convert import CONVERSIONS, ORIGINAL, convert, converted, read_record
from pyspec.store.cursor import open_regular, show
from pyspec.store.fetch import Progress, fetch, no_progress
from pyspec.store.fingerprint import file_sha256, stamp
from pyspec.store.hub import PREFIX, parse_hub_name
from pyspec.store.manifest import Entry, Manifest, load_manifest
from pyspec.store.paths import models_dir

__all__ = ["find", "fitting", "known_as", "resolve"]

_SHA256 = re.compile(r"[0-9a-f]{64}")


def resolve(model: str | os.PathLike[str] | None = None, progress: Progress = no_progress) -> Path:
    """The file of a model, fetched into the cache if need be.

    `model` is a path, a name of the manifest, such a name with the type it was converted to
    (`smollm2-135m-instruct-q4_k_m`; `-original` is the file as it comes), or `hf:OWNER/REPO/FILE.gguf`; None is the
    default target.
    Anything with a path separator or the suffix .gguf is a path. Raises ModelNotFound with near
    names, ModelUnreadable, or FetchError.
    """
    if isinstance(model, os.PathLike):
        return _existing(Path(model))
    if model is not None and not model.startswith(PREFIX) and _looks_like_path(model):
        return _existing(Path(model).expanduser())
    manifest = load_manifest()
    name = manifest.default_target if model is None else model
    if (entry := find(name, manifest)) is not None:
        if entry.convert is not None:
            return convert(entry, entry.convert, progress)
        return fetch(entry, progress)
    if (path := _variant(name, manifest, progress)) is not None:
        return path
    if name and _is_there(name):
        return _existing(Path(name))
    raise _unknown(name, manifest)


def find(name: str, manifest: Manifest) -> Entry | None:
    """The entry of a name or of a hub file, or None."""
    return manifest.get(name) or parse_hub_name(name)


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # no permission, a NUL byte
        return False


def _looks_like_path(text: str) -> bool:
    separators = {"/", os.sep, os.altsep or "/"}
    return text.endswith(".gguf") or text.startswith("~") or any(s in text for s in separators)


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


def _unknown(name: str, manifest: Manifest) -> ModelNotFound:
    if name.startswith(PREFIX):
        return ModelNotFound(
            f"{show(name)} names no hub file", "write hf:OWNER/REPO/FILE.gguf, or add @REVISION"
        )
    near = difflib.get_close_matches(name, manifest.names, n=3, cutoff=0.4)
    hint = "`pyspec models list` shows all names; a file is given by its path"
    if near:
        hint = f"did you mean {' or '.join(near)}? {hint}"
    return ModelNotFound(f"there is no model {show(name)} and no such file", hint)


def known_as(path: Path, manifest: Manifest) -> Entry | None:
    """The manifest's entry whose weights the file holds, converted ones included, or None.

    Files of another size than any entry are not hashed, so this is quick for large models.
    """
    if path.parent == models_dir() and (record := read_record(path)) is not None:
        entry = manifest.get(record.source)
        return entry if entry is not None and entry.sha256 == record.source_sha256 else None
    size = stamp(path).size
    for entry in manifest.model:
        if entry.size == size and file_sha256(path) == entry.sha256:
            return entry
    return None


def fitting(target: Path, role: str, manifest: Manifest | None = None) -> list[Entry]:
    """The drafts, companions or coupled drafts (`role`) that the manifest has for a target file."""
    manifest = manifest or load_manifest()
    offers = [entry for entry in manifest.model if entry.role == role and entry.for_target]
    if not offers:
        return []
    known = known_as(target, manifest)
    keys = {known.name, known.sha256} if known is not None else set()
    if any(_SHA256.fullmatch(key) for entry in offers for key in entry.for_target):
        keys.add(file_sha256(target))
    return [entry for entry in offers if keys.intersection(entry.for_target)]
