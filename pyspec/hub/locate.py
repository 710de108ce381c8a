"""Names for all models on this machine, whichever program fetched them, and the file for what a user typed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pyspec.errors import ModelNotFound, OptionError
from pyspec.hub.fetch import (
    CONVERSIONS,
    ORIGINAL,
    Progress,
    cached,
    convert,
    converted,
    fetch,
    no_progress,
    require_space,
)
from pyspec.hub.sources import PREFIX, Entry, Manifest, find_chat, find_hub, hub_repo, load_manifest
from pyspec.machine.files import (
    expanded,
    first_part,
    make_dir,
    models_dir,
    open_regular,
    parts_of,
    show,
)
from pyspec.machine.others import (
    PREFERRED,
    LocalModel,
    found_elsewhere,
    hub_file,
    is_model,
    of_repo,
)

# -- local models ------------------------------------------------------------------------------------------------------

OURS = "pyspec"


def found_here(manifest: Manifest) -> list[LocalModel]:
    """List all local models, ours first, then by program. No file is read."""
    known = [found for entry in manifest.model for found in _known(entry)]
    taken = {found.path for found in known}
    others = (*_fetched(), *found_elsewhere())
    return known + [found for found in others if found.path not in taken]


def names(*, targets_only: bool = False) -> list[str]:
    """Return every name that can be typed: of known models, their conversions, and other local models.

    targets_only: of the known models, only targets. Local files are never read for this.
    """
    manifest = load_manifest()
    roles = ("target",) if targets_only else ("target", "draft", "companion")
    here = [found.name for found in found_here(manifest) if found.role in roles]
    return list(dict.fromkeys([*(e.name for e in manifest.model if e.role in roles), *here]))


def find_here(name: str) -> LocalModel | None:
    """Find a local model by name in any letters, or else by alias; of several, one of the preferred type."""
    wanted, here = name.casefold(), found_here(load_manifest())
    matches = [found for found in here if found.name.casefold() == wanted] or [
        found for found in here if wanted in map(str.casefold, found.aliases)
    ]
    return min(matches, key=_preference, default=None)


def _preference(found: LocalModel) -> int:
    kind = found.name.rpartition(":")[2].upper()
    return PREFERRED.index(kind) if kind in PREFERRED else len(PREFERRED)


def _known(entry: Entry) -> Iterator[LocalModel]:
    """Yield what is here of an entry: the file that its name means, the original, and its conversions."""

    def model(name: str, path: Path, summary: str, *aliases: str) -> LocalModel:
        return LocalModel(name, path, OURS, aliases, "", entry.role, entry.licence, summary)

    original, main = cached(entry), entry.convert
    runs = converted(entry, main) if main else original
    if runs is not None:
        own = f"{entry.name}-{main}" if main else runs.stem
        yield model(entry.name, runs, entry.summary, own, runs.name)
    if original is not None and original != runs:
        name = f"{entry.name}-{ORIGINAL}"
        yield model(name, original, "as it was fetched", original.stem, original.name)
    for kind in CONVERSIONS:
        made = converted(entry, kind)
        if made is not None and made != runs:
            yield model(f"{entry.name}-{kind}", made, f"converted from {entry.name}")


def _fetched() -> Iterator[LocalModel]:
    with suppress(OSError):
        for path in sorted(models_dir().glob("*--*--*--*.gguf")):
            if (found := hub_file(path)) is not None and is_model(path):
                repo, file, revision = found
                yield of_repo(repo, file, path, OURS, f"{repo}/{file}@{revision}")


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(name: str) -> str:
    """Remove a model from our cache, and say what was done.

    Raises ModelNotFound, OptionError for a model of another program or one that ships with pyspec, or OSError.
    """
    found = find_here(name)
    if found is None:
        hint = "`pyspec models list` shows all"
        raise ModelNotFound(f"there is no model {show(name)} here", hint)
    if found.origin != OURS:
        how = {"ollama": f"`ollama rm {found.name}`"}.get(found.origin, "that program")
        raise OptionError(f"{found.name} belongs to {found.origin}", f"remove it with {how}")
    if found.path.parent != models_dir():
        raise OptionError(f"{found.name} is a part of pyspec", "it is removed with pyspec")
    freed = 0
    for path in filter(Path.is_file, [*parts_of(found.path), found.path.with_suffix(".json")]):
        freed += path.stat().st_size
        path.unlink()
    return f"removed {found.name}, {freed / 1e6:.0f} MB"


# -- from a name to a file ---------------------------------------------------------------------------------------------


def resolve(model: str | os.PathLike[str] | None = None, progress: Progress = no_progress) -> Path:
    """Return the file of a model, fetched into the cache if needed.

    model: a path, of any part of a split model too; a name from the manifest, optionally with a type it was converted to
    (`smollm2-135m-instruct-q4_k_m`; `-original` for the file as fetched); another program's name for a local model
    (`llama3.2:3b`, a file's stem); or a file of the hub: OWNER/REPO[:TYPE], `hf:OWNER/REPO/FILE.gguf[@REVISION]`, or its URL.
    None for the default target. The hub is not asked for local files. Raises ModelNotFound, ModelUnreadable or FetchError.
    """
    if isinstance(model, os.PathLike) or (model is not None and _is_path(model)):
        return _existing(expanded(os.fspath(model)))
    manifest = load_manifest()
    name = manifest.default_target if model is None else model
    if (entry := manifest.get(name)) is not None:
        kind = entry.convert
        return convert(entry, kind, progress) if kind else fetch(entry, progress)
    repo, chat = hub_repo(name), find_chat(name)
    found = find_here(repo.plain if repo else name) or (find_here(chat.model) if chat else None)
    if found is not None:
        return found.path
    if name and _is_there(name):
        return _existing(Path(name))
    if (entry := manifest.get(name.removesuffix(f"-{ORIGINAL}"))) is not None:
        return fetch(entry, progress)
    return pull(name, progress)


def pull(name: str, progress: Progress = no_progress) -> Path:
    """Fetch the hub's current version of a repository's file. Raises ModelNotFound if `name` is not a repository."""
    repo = hub_repo(name)
    if repo is None:
        raise _unknown(name)
    progress(f"asking the hub for {repo.name}", 0, 0)
    parts = find_hub(repo)
    require_space(make_dir(models_dir()), sum(each.size for each in parts if cached(each) is None))
    first, *_ = [fetch(entry, progress) for entry in parts]
    return first


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # no permission, a NUL byte
        return False


def _is_path(text: str) -> bool:
    """Whether a text is meant as a path. OWNER/REPO is not, unless there is such a file."""
    if text.startswith(PREFIX) or "://" in text:
        return False
    if not text.startswith("~") and not text.endswith(".gguf") and "/" not in text:
        return False
    return _is_there(text) or (hub_repo(text) is None and find_here(text) is None)


def _existing(path: Path) -> Path:
    """Return the file that a path names: the first part for any of a model."""
    first = first_part(path)
    if first != path and path.is_file() and not first.is_file():
        hint = "put all parts in one folder"
        raise ModelNotFound(f"{first.name} is missing beside {path.name}", hint)
    open_regular(first).close()  # raises the fitting error
    return first


def _unknown(name: str) -> ModelNotFound:
    hint = (
        "`pyspec models list` has the names here, `pyspec models search` others to fetch; "
        "a file works too, and OWNER/REPO:TYPE of the hub, where TYPE is Q4_K_M, for example"
    )
    if (chat := find_chat(name)) is not None:
        hint = f"fetch it with `pyspec models pull {name}` ({chat.size / 1e9:.2f} GB)"
    return ModelNotFound(f"there is no model {show(name)} here", hint)
