"""What can draft for a target: models of its vocabulary, what the manifest has for it, its own head, and EAGLE-3 files.

EAGLE-3 (arXiv 2503.01840) drafts are one decoder layer over the inputs of three of the target's layers. llama.cpp asserts where
their widths, layers or ids do not fit the target, which would end the process; so everything that it asserts is refused here
with a sentence, from the header alone.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np

from pyspec.errors import DraftMismatch, ModelInvalid, UnsupportedModel
from pyspec.store.fetch import read_provenance
from pyspec.store.files import file_sha256, models_dir, stamp
from pyspec.store.gguf import Array, Header, parse_header
from pyspec.store.header import Facts, facts_of
from pyspec.store.locate import found_here
from pyspec.store.others import Found
from pyspec.store.sources import Entry, Manifest, load_manifest

EAGLE3 = "eagle3"
"""The architecture of EAGLE-3 files. Each is made for one target, whatever its vocabulary."""

MTP = "mtp"
"""What a draft from the target's own next-token head is called."""

# -- models of one vocabulary ------------------------------------------------------------------------------------------


LARGEST = 0.35
"""Share of the target's size above which no draft is taken unasked: its steps would cost as much as they gain."""

PATIENCE_S = 0.3
"""How long a start may look into files that were never looked into, seconds."""


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


def candidates(target: Path) -> list[Candidate]:
    """What can draft for a target: models here whose vocabulary fits, smallest first, then known ones to fetch.

    A model larger than the target is none. Empty where the target's vocabulary is not known.
    """
    facts = facts_of(target)
    if facts is None or not facts.vocabulary:
        return []
    here = []
    for found in _small(target, facts.size):
        if (other := _fitting_facts(found, facts)) is not None:
            note = "recurrent: it cannot be rolled back" if other.recurrent else other.name
            share = other.size / facts.size
            here.append(Candidate(found.name, found.origin, other.size, share, note, found.path))
    return sorted(here, key=lambda c: c.size) + known_drafts(facts, load_manifest())


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
        other = _fitting_facts(found, facts)
        if other is not None and not other.recurrent:
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
    for found, entry, _ in found_here(load_manifest()):
        if entry is not None and entry.role not in ("target", "draft"):
            continue
        with suppress(OSError):
            if (size := found.path.stat().st_size) <= largest and not found.path.samefile(target):
                sized.append((size, found))
    return [found for _, found in sorted(sized, key=lambda pair: pair[0])]


def _fitting_facts(found: Found, facts: Facts) -> Facts | None:
    """The facts of a smaller model with the same vocabulary; None for others."""
    other = facts_of(found.path)
    if other is None or other.architecture == EAGLE3 or other.size >= facts.size:
        return None
    return other if other.vocabulary == facts.vocabulary else None


def known_drafts(facts: Facts, manifest: Manifest) -> list[Candidate]:
    """The drafts that the manifest's families have for a target of these facts, smallest first."""
    found = [
        Candidate(draft.model, "to fetch", draft.size, draft.size / facts.size, draft.note)
        for family in manifest.family
        if facts.architecture in family.architectures and facts.n_vocab in family.n_vocab
        for draft in family.drafts
        if draft.size < facts.size
    ]
    return sorted(found, key=lambda c: c.size)


# -- of the manifest, for one target -----------------------------------------------------------------------------------


_SHA256 = re.compile(r"[0-9a-f]{64}")


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


def fitting(target: Path, role: str) -> list[Entry]:
    """The drafts or companions (`role`) that the manifest has for a target file."""
    manifest = load_manifest()
    offers = [entry for entry in manifest.model if entry.role == role and entry.for_target]
    if not offers:
        return []
    known = known_as(target, manifest)
    keys = {known.name, known.sha256} if known is not None else set()
    if any(_SHA256.fullmatch(key) for entry in offers for key in entry.for_target):
        keys.add(file_sha256(target))
    return [entry for entry in offers if keys.intersection(entry.for_target)]


# -- drafts that read the target's states ------------------------------------------------------------------------------


_LAST = "qwen3next qwen35 qwen35moe gpt-oss gemma4 nemotron_h nemotron_h_moe mimo2 deepseek4 bailingmoe3"
_INPUTS = f"{_LAST} llama qwen3 qwen3moe lfm2 lfm2moe hunyuan-dense hunyuan_vl minimax-01 minimax-m2 muse-glimmer nanbeige"

SHOWS_LAYERS = frozenset(_INPUTS.split())
"""Architectures whose layers' inputs llama.cpp can give; asked for those of another, it ends the process."""

SHOWS_LAST = frozenset(_LAST.split())
"""Those that also give what comes out of the last layer."""

ONE_HEAD = frozenset(["qwen35", "qwen35moe", "qwen3next"])
"""Architectures whose next-token head (MTP) is one trained layer that is asked again for each token."""

_WINDOW = 64


@dataclass(frozen=True)
class TargetShape:
    """What a draft that reads states must know of its target. n_layer: without next-token heads."""

    architecture: str
    n_layer: int
    n_embd: int
    n_vocab: int


@dataclass(frozen=True)
class States:
    """How a draft in a context of its own reads the target's states.

    kind: eagle3 or mtp. layers: whose inputs an EAGLE-3 draft reads, -1 for what comes out of the last one. n_hidden: floats of a
    state, of the three layers together. width: floats of one input of the draft.
    """

    kind: str
    n_hidden: int
    width: int
    layers: tuple[int, ...] = ()

    @property
    def window(self) -> int:
        """How many tokens back it begins to read a text.

        What came before is in the target's states; reading more of a long prompt costs more than it brings (models/README.md).
        """
        return _WINDOW


def has_head(model: Path) -> bool:
    """Whether a model's file holds a next-token head of a kind that is known here."""
    if _architecture(model) not in ONE_HEAD:
        return False
    return parse_header(model).of_arch("nextn_predict_layers") == 1


def head_size(model: Path) -> int:
    """Bytes that one step of a model's next-token head reads: its layer and the output matrix."""
    header = parse_header(model)
    layers, sizes = header.of_arch("block_count"), {t.name: t.nbytes for t in header.tensors}
    last = f"blk.{layers - 1 if isinstance(layers, int) else 0}."
    output = sizes.get("output.weight", sizes.get("token_embd.weight", 0))
    return output + sum(size for name, size in sizes.items() if name.startswith(last))


def is_eagle3(draft: Path) -> bool:
    """Whether a GGUF is an EAGLE-3 draft."""
    return _architecture(draft) == EAGLE3


def refuse_eagle3(model: Path) -> None:
    """Raises ModelInvalid for an EAGLE-3 draft in a place where it cannot be: llama.cpp would load it, and later abort."""
    if is_eagle3(model):
        raise ModelInvalid(
            f"{model.name} is an EAGLE-3 head and answers nothing by itself", "give it as --draft"
        )


def _architecture(model: Path) -> str:
    """From the cache where the file has not changed. Raises ModelError for what is no GGUF file."""
    facts = facts_of(model)
    return facts.architecture if facts is not None else parse_header(model).architecture


def read_eagle3(draft: Path, target: TargetShape) -> States:
    """What an EAGLE-3 file reads of its target.

    Raises ModelInvalid for a file that contradicts itself, DraftMismatch for one made for another target, UnsupportedModel where
    llama.cpp cannot show the target's layers.
    """
    header = parse_header(draft)
    layers = _layers(header, target)
    hidden, width = _whole(header, "target_hidden_size"), _whole(header, "embedding_length")
    if hidden != target.n_embd:
        raise _mismatch(header, f"it reads states {hidden} wide, the target's are {target.n_embd}")
    if header.of_arch("embedding_length_out") not in (None, width):
        raise _damaged(header, "gives states of another width than it works with")
    if (
        header.of_arch("attention.causal") is False
    ):  # llama.cpp ends the process for texts beyond one batch
        raise _damaged(header, "looks at tokens that are still to come")
    if _whole(header, "block_count") != 1:
        raise _damaged(header, "has more than one layer")
    _check_ends(header, width, target)
    return States(EAGLE3, 3 * hidden, width, layers)


def _whole(header: Header, key: str) -> int:
    value = header.of_arch(key)
    if type(value) is not int or value < 1:
        raise _damaged(header, f"does not say its {key}")
    return value


def _damaged(header: Header, what: str) -> ModelInvalid:
    return ModelInvalid(f"{header.path.name} {what}", "convert it again")


def _mismatch(header: Header, what: str) -> DraftMismatch:
    return DraftMismatch(f"{header.path.name}: {what}", "it was made for another target")


def _layers(header: Header, target: TargetShape) -> tuple[int, ...]:
    key = f"{EAGLE3}.target_layers"
    value = header.metadata.get(key)
    listed = header.array(key) if isinstance(value, Array) else []
    layers = [int(i) for i in listed if isinstance(i, np.integer)]
    if len(layers) != 3 or len(listed) != 3:
        raise _damaged(header, "does not name three layers")
    if not all(0 <= layer <= target.n_layer for layer in layers):
        raise _mismatch(header, f"it reads layers {layers}, the target has {target.n_layer}")
    shows = SHOWS_LAST if target.n_layer in layers else SHOWS_LAYERS
    if target.architecture not in shows:
        raise UnsupportedModel(
            f"llama.cpp does not show the layers of {target.architecture} models, which {header.path.name} reads",
            "use another draft",
        )
    return tuple(-1 if layer == target.n_layer else layer for layer in layers)


def _check_ends(header: Header, width: int, target: TargetShape) -> None:
    """Embeddings, head and vocabulary, own or the target's."""
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    borrowed = [name for name in ("token_embd.weight", "output.weight") if name not in shapes]
    if borrowed and width != target.n_embd:
        raise _mismatch(header, f"it needs the target's {borrowed[0]} and is {width} wide")
    n_vocab = header.vocab_size
    if "output.weight" in borrowed and ("d2t" in shapes or n_vocab != target.n_vocab):
        raise _mismatch(header, "its vocabulary is not that of the target, whose head it needs")
    embeddings = shapes.get("token_embd.weight", (width, target.n_vocab))
    if len(embeddings) != 2:
        raise _damaged(header, "has embeddings that are no matrix")
    if embeddings[1] < target.n_vocab:
        raise _mismatch(
            header, f"it embeds {embeddings[1]} tokens, the target has {target.n_vocab}"
        )
    if "d2t" in shapes:
        _check_ids(header, min(n_vocab, target.n_vocab))


def _check_ids(header: Header, n_vocab: int) -> None:
    """llama.cpp scatters the draft's logits to these ids of the target's vocabulary."""
    tensor = next(tensor for tensor in header.tensors if tensor.name == "d2t")
    if tensor.type.upper() != "I64":
        raise _damaged(header, f"keeps d2t as {tensor.type}")
    ids = np.fromfile(header.path, np.int64, tensor.nbytes // 8, offset=tensor.offset)
    if ids.size == 0 or ids.min() < 0 or ids.max() >= n_vocab:
        raise _mismatch(header, f"it drafts ids outside the target's {n_vocab}")
