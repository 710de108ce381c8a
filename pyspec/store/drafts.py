"""Which models can draft for which: by vocabulary where the file is here, by family where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspec.store.facts import Facts, facts_of
from pyspec.store.manifest import Family, Manifest, load_manifest
from pyspec.store.others import Found
from pyspec.store.shelf import here

__all__ = ["Candidate", "candidates", "draft_here", "known_drafts"]

LARGEST = 0.35
"""Share of the target's size above which no draft is taken unasked: its steps would cost as much as they gain."""

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
        for found, other in _fitting(target, facts, manifest)
    ]
    return sorted(fitting, key=lambda c: c.size) + known_drafts(facts, manifest)


def draft_here(target: Path) -> Found | None:
    """The smallest model on this machine that has a target's vocabulary and is much smaller than it, or None."""
    facts = facts_of(target)
    if facts is None or not facts.vocabulary:
        return None
    small = [
        (other.size, found)
        for found, other in _fitting(target, facts, load_manifest())
        if other.size <= LARGEST * facts.size and not other.recurrent
    ]
    return min(small, key=lambda pair: pair[0])[1] if small else None


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


def _fitting(target: Path, facts: Facts, manifest: Manifest) -> list[tuple[Found, Facts]]:
    own = target.resolve()
    found = []
    for model in here(manifest):
        other = model.facts
        if other is None or model.role == "companion" or other.architecture in _COUPLED:
            continue
        same = other.vocabulary == facts.vocabulary and other.size < facts.size
        if same and model.role != "coupled" and model.found.path.resolve() != own:
            found.append((model.found, other))
    return found


def _note(facts: Facts) -> str:
    return "recurrent: it cannot be rolled back" if facts.recurrent else facts.name
