"""Which models can draft for which: by vocabulary where the file is here, by family where it is not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from pyspec.store.facts import Facts, facts_of
from pyspec.store.manifest import Family, Manifest, load_manifest
from pyspec.store.others import Found
from pyspec.store.shelf import shelf

__all__ = ["Candidate", "candidates", "draft_here", "known_drafts", "same_tokens"]

LARGEST = 0.35
"""Share of the target's size above which no draft is taken unasked: its steps would cost as much as they gain."""

PATIENCE_S = 0.3
"""How long a start may look into files that were never looked into, seconds."""

_COUPLED = ("eagle3",)
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
    """What is here, is no companion or coupled draft, and has at most so many bytes; smallest first."""
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
    return same and other.architecture not in _COUPLED


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
