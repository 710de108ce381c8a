"""Finds drafts for a target: files beside it, local models with its vocabulary, manifest entries, known ones to fetch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from pyspec.gguf.header import Facts, facts_of
from pyspec.gguf.kinds import ASSISTANT, MTP, NAMES, STATE_KINDS, head_size, n_heads
from pyspec.hub.fetch import cached, read_provenance
from pyspec.hub.locate import OURS, found_here
from pyspec.hub.sources import PREFIX, Entry, Family, Manifest, load_manifest
from pyspec.machine.files import file_sha256, models_dir, size_of, stamp
from pyspec.machine.others import LocalModel, is_draft_file, sizes_of

# -- models here -------------------------------------------------------------------------------------------------------

LARGEST = 0.35
"""Largest draft to use unasked, as a share of the target: steps of a larger one would cost what they gain.

Of the bytes that a token reads, which of a mixture are few; of the whole file for heads, which are made for their target.
"""

LARGEST_KNOWN = 0.5  # largest to suggest for fetching, of what a token of the target reads
MAX_TRIED = 4  # most files that a start tries as drafts: each trial loads one in a child
BESIDE = "beside it"  # origin of a file in the target's folder that is otherwise unknown
LocalDraft = tuple[LocalModel, Facts]


@dataclass(frozen=True)
class Candidate:
    """A model that could draft for a target."""

    name: str
    origin: str  # where it is
    size: int  # bytes
    share: float  # of the bytes that a token of the target reads: about a step's relative cost
    note: str = ""  # what to know about it
    path: Path | None = None  # None for one to fetch
    licence: str = ""  # of one to fetch


def candidates(target: Path) -> list[Candidate]:
    """List drafts for a target: local ones as `auto` takes them, but of any size below the target's, then ones to fetch.

    The target itself in another type is left out. Empty if the target is unreadable.
    """
    facts = facts_of(target)
    if facts is None:
        return []
    here: list[Candidate] = []
    had: set[str] = set()
    for found, other in _Local(target, facts).drafts(facts.size - 1):
        if not _is_itself(other, facts):
            had.update((found.name, *found.aliases))
            here.append(
                Candidate(found.name, found.origin, other.size, other.read / facts.read,
                          NAMES.get(other.kind, other.name), found.path)
            )  # fmt: skip
    known = known_drafts(facts, load_manifest())
    return here + [draft for draft in known if draft.name.removeprefix(PREFIX) not in had]


def own_head(target: Path) -> list[Candidate]:
    """Return the target's own next-token head (MTP), which is preferred to any other draft; empty if it has none."""
    facts = facts_of(target)
    if facts is None or facts.kind != "model" or not n_heads(target):
        return []
    size = head_size(target)
    return [Candidate(MTP, "in its file", size, size / size_of(target), NAMES[MTP], target)]


def _is_itself(other: Facts, target: Facts) -> bool:
    """Whether a file is the target's model in another type, judged by name and size."""
    same = other.name == target.name != "" and other.architecture == target.architecture
    return same and other.kind == "model" and other.size > LARGEST * target.size


def drafts_here(target: Path) -> Iterator[LocalModel]:
    """Yield the local files that `auto` tries, best first: those beside the target, then the smallest with its vocabulary."""
    facts = facts_of(target)
    if facts is None:
        return
    small = _Local(target, facts).drafts(int(LARGEST * facts.size))
    # a draft has to read few bytes a token beside its target; heads do
    quick = (m for m, o in small if o.kind != "model" or o.read <= LARGEST * facts.read)
    yield from islice(quick, MAX_TRIED)


class _Local:
    """The local models as drafts for a target."""

    def __init__(self, target: Path, facts: Facts) -> None:
        self._target, self._facts, self._manifest = target, facts, load_manifest()
        self._here = found_here(self._manifest)

    def drafts(self, largest: int) -> Iterator[LocalDraft]:
        """Yield those of at most `largest` bytes, each file once: beside the target, heads made for it, then by vocabulary."""
        places: set[Path] = set()
        for found, other in chain(self.beside(), self.known(), self.fitting(largest)):
            place = found.path.resolve()
            if place not in places and other.size <= largest:
                places.add(place)
                yield found, other

    def known(self) -> list[LocalDraft]:
        """Return heads that are known to be made for this target; a vocabulary cannot show that."""
        drafts = known_drafts(self._facts, self._manifest)
        wanted = {known.name.removeprefix(PREFIX) for known in drafts}
        here = [m for m in self._here if not wanted.isdisjoint((m.name, *m.aliases))]
        return [(m, other) for m, other in _with_facts(here) if other.kind in STATE_KINDS]

    def fitting(self, largest: int) -> Iterator[LocalDraft]:
        """Yield models of at most `largest` bytes with the target's tokens, smallest first."""
        if self._facts.vocabulary is None:
            return
        sized = []
        for found in self._here:
            with suppress(OSError):
                sized.append((size_of(found.path), found))
        small = [m for n, m in sorted(sized, key=lambda pair: pair[0]) if n <= largest]
        others = (m for m in small if m.role != "companion" and not _same(m.path, self._target))
        fit = _with_facts(others)
        yield from ((m, other) for m, other in fit if self._speaks(other))

    def beside(self) -> list[LocalDraft]:
        """Return drafts kept with the target, in its folder, repository or manifest: heads such as EAGLE-3 first.

        In a folder they are recognised by their names, since it may also hold other models' drafts.
        """
        near = [found for found in self._neighbours() if not _same(found.path, self._target)]
        fits = [(m, other) for m, other in _with_facts(near) if self._drafts_for(m, other)]
        return sorted(fits, key=lambda pair: (pair[1].kind == "model", pair[1].size))

    def _neighbours(self) -> list[LocalModel]:
        homes = {m.home for m in self._here if m.home and _same(m.path, self._target)}
        near = [found for found in self._here if found.home in homes]
        known = {found.path: found for found in self._here}
        with suppress(OSError):
            files = sorted(self._target.absolute().parent.glob("*.gguf"))
            found = [known.get(path, LocalModel(path.stem, path, BESIDE)) for path in files]
            # files of another repository in the same folder belong to another model
            near += [m for m in found if not m.home and is_draft_file("", m.path.name)]
        return near

    def _drafts_for(self, found: LocalModel, other: Facts) -> bool:
        """Whether a neighbour drafts for this target; a head's name may state the size of its target."""
        if other.kind not in STATE_KINDS:
            return other.size < self._facts.size and self._speaks(other)
        of = {MTP: other.architecture, ASSISTANT: "gemma4"}.get(other.kind)
        if of not in (None, self._facts.architecture):
            return False
        named, own = sizes_of(found.path.name), sizes_of(self._target.name)
        return bool(found.home) or not named or not own or bool(named & own)

    def _speaks(self, other: Facts) -> bool:
        one, two = self._facts.vocabulary, other.vocabulary
        return other.kind == "model" and bool(one and two and one.fits(two))


def _with_facts(models: Iterable[LocalModel]) -> Iterator[LocalDraft]:
    return ((m, facts) for m in models if (facts := facts_of(m.path)) is not None)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


# -- known ones to fetch -----------------------------------------------------------------------------------------------


def known_drafts(facts: Facts, manifest: Manifest) -> list[Candidate]:
    """Return the drafts that the manifest's families list for a target: those made for it, then the smallest first."""
    name = "-" + re.sub(r"[^a-z0-9.]+", "-", facts.name.lower())
    drafts = [d for family in manifest.family if is_of(facts, family) for d in family.drafts]
    found = [d for d in drafts if d.size <= LARGEST_KNOWN * facts.read and f"-{d.of}" in name]
    found.sort(key=lambda draft: (not draft.of, draft.size or facts.size))
    return [
        Candidate(d.model, "to fetch", d.size, d.size / facts.read, d.note, None, d.licence)
        for d in found
    ]  # fmt: skip


def is_of(facts: Facts, family: Family) -> bool:
    """Whether a model belongs to a family, by architecture, vocabulary size, and distinguishing tokens."""
    if facts.architecture not in family.architectures or (
        family.n_vocab and facts.n_vocab not in family.n_vocab
    ):
        return False
    words = facts.vocabulary
    if words is None:
        return False
    marks = dict(words.marks)
    if any(marks.get(int(i), "") != text for i, text in family.marks.items()):
        return False
    return not family.vocabulary or not {words.before, words.upto}.isdisjoint(family.vocabulary)


# -- manifest entries for one target -----------------------------------------------------------------------------------


def known_as(path: Path, manifest: Manifest) -> Entry | None:
    """Return the manifest entry whose weights a file holds, also converted, or None. Only files of an entry's size are hashed."""
    if path.parent == models_dir() and (record := read_provenance(path)) is not None:
        entry = manifest.get(record.source)
        return entry if entry is not None and entry.sha256 == record.source_sha256 else None
    size = stamp(path).size
    for entry in manifest.model:
        if entry.size == size and file_sha256(path) == entry.sha256:
            return entry
    return None


def made_for(target: Path) -> list[Candidate]:
    """Return the manifest's drafts for exactly this target, local or to fetch."""
    facts = facts_of(target)
    read = facts.read if facts is not None else size_of(target)
    return [
        Candidate(
            each.name, OURS if (path := cached(each)) else "to fetch", each.size, each.size / read,
            each.summary, path, licence=each.licence,
        )
        for each in offers_for(target, "draft")
    ]  # fmt: skip


def offers_for(target: Path, role: str) -> list[Entry]:
    """Return the manifest's drafts or companions (`role`) for a target file."""
    manifest = load_manifest()
    if (known := known_as(target, manifest)) is None:
        return []
    return [e for e in manifest.model if e.role == role and known.name in e.for_target]
