"""All models on this machine under one set of names, whoever fetched them, and which can draft for which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import msgspec

from pyspec.atomic import write_whole
from pyspec.errors import ModelNotFound, OptionError
from pyspec.store.cache import cache_dir, file_lock, make_dir, models_dir
from pyspec.store.cursor import show
from pyspec.store.fetch import CONVERSIONS, cached, converted, target_path, variant_path
from pyspec.store.header import Facts, facts_of, read_header
from pyspec.store.manifest import Entry, Family, Manifest, Shipped, load_manifest
from pyspec.store.others import Found, found_elsewhere, gguf_names

__all__ = [
    "Candidate",
    "Model",
    "add",
    "candidates",
    "draft_here",
    "find_here",
    "here",
    "known_drafts",
    "names",
    "remove",
    "same_tokens",
    "shelf",
    "target_names",
]

OURS, ADDED = "pyspec", "added"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0")
"""Which type is meant where a repository is named without one."""


@dataclass(frozen=True)
class Model:
    """A model on this machine, and what its file is; role is that of the manifest, else `target`."""

    found: Found
    facts: Facts | None
    role: str = "target"
    licence: str = ""
    summary: str = ""


def here(manifest: Manifest | None = None) -> list[Model]:
    """Every model on this machine: ours first, then by program."""
    return [
        Model(found, facts_of(found.path))
        if entry is None
        else Model(found, facts_of(found.path), entry.role, entry.licence, summary)
        for found, entry, summary in shelf(manifest or load_manifest())
    ]


def shelf(manifest: Manifest) -> list[tuple[Found, Entry | None, str]]:
    """The same without a look into the files: what is here, its entry in the manifest, a summary."""
    known: list[tuple[Found, Entry | None, str]] = [
        (found, entry, summary) for entry in manifest.model for found, summary in _known(entry)
    ]
    taken = {found.path for found, _, _ in known}
    more = [*_fetched(), *_added(), *found_elsewhere()]
    return known + [(found, None, "") for found in more if found.path not in taken]


def names() -> list[str]:
    """Every name that can be typed: of known models, and of those that are here."""
    manifest = load_manifest()
    more = [found.name for found in (*_fetched(), *_added(), *found_elsewhere())]
    return list(dict.fromkeys([*manifest.names, *more]))


def target_names() -> list[str]:
    """Names of models to talk with: known targets, converted ones, and what is here of others; no header is read."""
    manifest = load_manifest()
    found = [f.name for entry in manifest.model if entry.role == "target" for f, _ in _known(entry)]
    known = [entry.name for entry in manifest.model if entry.role == "target"]
    more = [found.name for found in (*_fetched(), *_added(), *found_elsewhere())]
    return list(dict.fromkeys([*known, *found, *more]))


def find_here(name: str) -> Found | None:
    """The model of a name among the added, fetched and other programs', or None; an owner's name goes first."""
    candidates = [*_added(), *_fetched(), *found_elsewhere()]
    by_name = [found for found in candidates if found.name.casefold() == name.casefold()]
    matches = by_name or [found for found in candidates if found.answers_to(name)]
    return min(matches, key=_preference) if matches else None


def _preference(found: Found) -> int:
    kind = found.name.rpartition(":")[2].upper()
    return _PREFERRED.index(kind) if kind in _PREFERRED else len(_PREFERRED)


# -- ours --------------------------------------------------------------------------------------------------------------


def _known(entry: Entry) -> Iterator[tuple[Found, str]]:
    path = cached(entry)
    if path is not None:
        yield Found(entry.name, path, OURS, (path.stem, path.name)), entry.summary
    for kind in CONVERSIONS:
        made = converted(entry, kind)
        if made is not None:
            yield Found(f"{entry.name}-{kind}", made, OURS), f"converted from {entry.name}"


def _fetched() -> Iterator[Found]:
    """Files of the hub in our cache: OWNER--REPO--REVISION--FILE."""
    with suppress(OSError):
        for path in sorted(models_dir().glob("*--*--*--*.gguf")):
            owner, repo, _, file = path.name.split("--", 3)
            if not re.search(r"-(?!00001-of-)\d{5}-of-\d{5}\.gguf$", file):
                name, aliases = gguf_names(f"{owner}/{repo}", file.replace("--", "/"))
                yield Found(name, path, OURS, aliases)


# -- added -------------------------------------------------------------------------------------------------------------


def _register() -> Path:
    return cache_dir() / "added.json"


def _load_register() -> dict[str, str]:
    try:
        return msgspec.json.decode(_register().read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


def _added() -> Iterator[Found]:
    for name, path in _load_register().items():
        if Path(path).is_file():
            yield Found(name, Path(path), ADDED, (Path(path).stem,))


def add(file: Path, name: str | None = None) -> Found:
    """Give a GGUF file a name, which then works wherever a name does; the file stays where it is.

    Raises ModelError for what is no model, OptionError for a name that cannot be or is taken.
    """
    path = file.expanduser().absolute()
    read_header(path)
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise OptionError(
            f"the path {show(str(path), 300)} is not UTF-8", "rename it first"
        ) from None
    name = name or path.stem
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{show(name)} cannot be a name", "use letters, digits, '.', '_', '-', ':'"
        )
    held = _load_register().get(name)
    taken = load_manifest().get(name) is not None or (find_here(name) is not None and held is None)
    if taken or (held is not None and Path(held) != path and Path(held).exists()):
        raise OptionError(f"there is a model {show(name)} already", "choose another with --name")
    _change_register({name: str(path)})
    return Found(name, path, ADDED)


def _change_register(new: dict[str, str], without: str = "") -> None:
    folder = make_dir(cache_dir())
    with file_lock(folder / ".added.lock"):
        register = {**_load_register(), **new}
        register.pop(without, None)
        write_whole(_register(), [msgspec.json.format(msgspec.json.encode(register), indent=1)])


# -- removing ----------------------------------------------------------------------------------------------------------


def remove(name: str) -> str:
    """Remove a model of ours from this machine, or the name of an added one; says what was done.

    Raises ModelNotFound, or OptionError for what is another program's or ships with pyspec.
    """
    if name in _load_register():
        _change_register({}, without=name)
        return f"{name} is no name any more; its file stays where it is"
    paths = _own_files(name)
    if paths:
        freed = sum(path.stat().st_size for path in paths)
        for path in paths:
            path.unlink()
        return f"removed {name}, {freed / 1e6:.0f} MB"
    found = find_here(name)
    if found is None:
        raise ModelNotFound(
            f"there is no model {show(name)} here", "`pyspec models list` shows all"
        )
    if found.origin == OURS:
        return remove(found.name) if found.name != name else _remove_fetched(found)
    how = {"ollama": f"`ollama rm {found.name}`"}.get(found.origin, "that program")
    raise OptionError(f"{found.name} belongs to {found.origin}", f"remove it with {how}")


def _remove_fetched(found: Found) -> str:
    stem = re.sub(r"-00001-of-(\d{5})\.gguf$", r"-?????-of-\1.gguf", found.path.name)
    paths = list(found.path.parent.glob(stem))
    freed = sum(path.stat().st_size for path in paths)
    for path in paths:
        path.unlink()
    return f"removed {found.name}, {freed / 1e6:.0f} MB"


def _own_files(name: str) -> list[Path]:
    """Files in our cache that a name of the manifest stands for; nothing that ships with the package."""
    manifest = load_manifest()
    for entry in manifest.model:
        if entry.name == name:
            if isinstance(entry.source, Shipped):
                raise OptionError(f"{name} is a part of pyspec", "it cannot be removed alone")
            path = target_path(entry)
            return [path] if path.is_file() else []
        kind = name.removeprefix(f"{entry.name}-")
        if kind != name and kind in CONVERSIONS:
            path = variant_path(entry.name, kind)
            return [p for p in (path, path.with_suffix(".json")) if p.is_file()]
    return []


# -- drafts ------------------------------------------------------------------------------------------------------------


LARGEST = 0.35
"""Share of the target's size above which no draft is taken unasked: its steps would cost as much as they gain."""

PATIENCE_S = 0.3
"""How long a start may look into files that were never looked into, seconds."""

_FOR_ONE = ("eagle3",)
"""Architectures of drafts that were made for one target, whatever their vocabulary."""


@dataclass(frozen=True)
class Candidate:
    """A model that could draft for a target: its name, where it is, its size in bytes, and what to know about it.

    share: of the target's size, about what one step costs next to one of the target's. path: None for one to fetch.
    """

    name: str
    origin: str
    size: int
    share: float
    note: str = ""
    path: Path | None = None


def candidates(target: Path, manifest: Manifest | None = None) -> list[Candidate]:
    """What can draft for a target: models here whose vocabulary fits, smallest first, then known ones to fetch.

    A model larger than the target is none. Empty where the target's vocabulary is not known.
    """
    manifest = manifest or load_manifest()
    facts = facts_of(target)
    if facts is None or not facts.vocabulary:
        return []
    fitting = [
        Candidate(
            found.name, found.origin, other.size, other.size / facts.size, _note(other), found.path
        )
        for found, other in _fitting(target, facts)
    ]
    return sorted(fitting, key=lambda c: c.size) + known_drafts(facts, manifest)


def draft_here(target: Path) -> Found | None:
    """The smallest model on this machine that has a target's vocabulary and is much smaller than it, or None.

    Headers that were never read are read, a tenth of a second each, for as long as `PATIENCE_S`: a later start knows the
    rest.
    """
    facts = facts_of(target)
    if facts is None or not facts.vocabulary:
        return None
    end = monotonic() + PATIENCE_S
    for found in _small(target, int(LARGEST * facts.size)):
        other = facts_of(found.path)
        if other is not None and _fits(other, facts) and not other.recurrent:
            return found
        if monotonic() > end:
            break
    return None


def same_tokens(one: Path, other: Path) -> bool:
    """Whether two files are known to have equal token texts, in equal number."""
    ours, theirs = facts_of(one), facts_of(other)
    if ours is None or theirs is None or not ours.vocabulary:
        return False
    return (ours.vocabulary, ours.n_vocab) == (theirs.vocabulary, theirs.n_vocab)


def _small(target: Path, largest: int) -> list[Found]:
    """What is here, is no companion, and has at most so many bytes; smallest first."""
    sized = []
    for found, entry, _ in shelf(load_manifest()):
        if entry is not None and entry.role not in ("target", "draft"):
            continue
        with suppress(OSError):
            if (size := found.path.stat().st_size) <= largest and not found.path.samefile(target):
                sized.append((size, found))
    return [found for _, found in sorted(sized, key=lambda pair: pair[0])]


def _fits(other: Facts, facts: Facts) -> bool:
    same = other.vocabulary == facts.vocabulary and other.size < facts.size
    return same and other.architecture not in _FOR_ONE


def known_drafts(facts: Facts, manifest: Manifest) -> list[Candidate]:
    """The drafts that the manifest's families have for a target of these facts, smallest first."""
    found = [
        Candidate(draft.model, "to fetch", draft.size, draft.size / facts.size, draft.note)
        for family in manifest.family
        if _is_of(family, facts)
        for draft in family.drafts
        if draft.size < facts.size
    ]
    return sorted(found, key=lambda c: c.size)


def _is_of(family: Family, facts: Facts) -> bool:
    return facts.architecture in family.architectures and facts.n_vocab in family.n_vocab


def _fitting(target: Path, facts: Facts) -> list[tuple[Found, Facts]]:
    found = [(found, facts_of(found.path)) for found in _small(target, facts.size)]
    return [(f, other) for f, other in found if other is not None and _fits(other, facts)]


def _note(facts: Facts) -> str:
    return "recurrent: it cannot be rolled back" if facts.recurrent else facts.name
