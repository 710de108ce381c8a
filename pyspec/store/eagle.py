"""EAGLE-3 drafts in llama.cpp's GGUF form: what the header says, held against the target before llama.cpp sees the file.

llama.cpp asserts where widths, layers or ids do not fit, which would end the process; so everything that it asserts is refused
here with a sentence. The form: EAGLE-3 (arXiv 2503.01840), one decoder layer over the inputs of three of the target's layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyspec.errors import DraftMismatch, ModelInvalid, UnsupportedModel
from pyspec.store.gguf import Array, Header, parse_header
from pyspec.store.header import facts_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MTP", "States", "TargetShape", "has_head", "head_size", "is_eagle3", "read_eagle3"]

ARCHITECTURE = "eagle3"
MTP = "mtp"
"""What a draft from the target's own next-token head is called."""

_LAST = "qwen3next qwen35 qwen35moe gpt-oss gemma4 nemotron_h nemotron_h_moe mimo2 deepseek4 bailingmoe3"
_INPUTS = f"{_LAST} llama qwen3 qwen3moe lfm2 lfm2moe hunyuan-dense hunyuan_vl minimax-01 minimax-m2 muse-glimmer nanbeige"

SHOWS_LAYERS = frozenset(_INPUTS.split())
"""Architectures whose layers' inputs llama.cpp can give; asked for those of another, it ends the process."""

SHOWS_LAST = frozenset(_LAST.split())
"""Those that also give what comes out of the last layer."""

ONE_HEAD = frozenset(["qwen35", "qwen35moe", "qwen3next"])
"""Architectures whose next-token head (MTP) is one trained layer that is asked again for each token."""

_WINDOW_BYTES = 16 << 20


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
    state, of the three layers together. width: floats of one input of the draft. window: states kept between its decodes.
    """

    kind: str
    n_hidden: int
    width: int
    layers: tuple[int, ...] = ()

    @property
    def window(self) -> int:
        """States that 16 MiB hold, 64 at least."""
        return max(64, _WINDOW_BYTES // (4 * self.n_hidden))


def has_head(model: Path) -> bool:
    """Whether a model's file holds a next-token head of a kind that is known here."""
    if _architecture(model) not in ONE_HEAD:
        return False
    header = parse_header(model)
    return header.of_arch("nextn_predict_layers") == 1


def head_size(model: Path) -> int:
    """Bytes that one step of a model's next-token head reads: its layer and the output matrix."""
    header = parse_header(model)
    layers, sizes = header.of_arch("block_count"), {t.name: t.nbytes for t in header.tensors}
    last = f"blk.{layers - 1 if isinstance(layers, int) else 0}."
    output = sizes.get("output.weight", sizes.get("token_embd.weight", 0))
    return output + sum(size for name, size in sizes.items() if name.startswith(last))


def is_eagle3(draft: Path) -> bool:
    """Whether a GGUF is an EAGLE-3 draft."""
    return _architecture(draft) == ARCHITECTURE


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
    if _whole(header, "block_count") != 1:
        raise ModelInvalid(f"{header.path.name} has more than one layer", "convert it again")
    _check_ends(header, width, target)
    return States(ARCHITECTURE, 3 * hidden, width, layers)


def _whole(header: Header, key: str) -> int:
    value = header.of_arch(key)
    if type(value) is not int or value < 1:
        raise ModelInvalid(f"{header.path.name} does not say its {key}", "convert it again")
    return value


def _mismatch(header: Header, what: str) -> DraftMismatch:
    return DraftMismatch(f"{header.path.name}: {what}", "it was made for another target")


def _layers(header: Header, target: TargetShape) -> tuple[int, ...]:
    key = f"{ARCHITECTURE}.target_layers"
    value = header.metadata.get(key)
    layers = [int(i) for i in header.array(key)] if isinstance(value, Array) else []
    if len(layers) != 3:
        raise ModelInvalid(f"{header.path.name} does not name three layers", "convert it again")
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
    n_own = header.metadata.get("tokenizer.ggml.tokens")
    n_vocab = n_own.count if isinstance(n_own, Array) else 0
    if "output.weight" in borrowed and ("d2t" in shapes or n_vocab != target.n_vocab):
        raise _mismatch(header, "its vocabulary is not that of the target, whose head it needs")
    embeddings = shapes.get("token_embd.weight")
    if embeddings is not None and embeddings[1] < target.n_vocab:
        raise _mismatch(
            header, f"it embeds {embeddings[1]} tokens, the target has {target.n_vocab}"
        )
    if "d2t" in shapes:
        _check_ids(header, min(n_vocab, target.n_vocab))


def _check_ids(header: Header, n_vocab: int) -> None:
    """llama.cpp scatters the draft's logits to these ids of the target's vocabulary."""
    tensor = next(tensor for tensor in header.tensors if tensor.name == "d2t")
    if tensor.type.upper() != "I64":
        raise ModelInvalid(f"{header.path.name} keeps d2t as {tensor.type}", "convert it again")
    ids = np.fromfile(header.path, np.int64, tensor.nbytes // 8, offset=tensor.offset)
    if ids.size == 0 or ids.min() < 0 or ids.max() >= n_vocab:
        raise _mismatch(header, f"it drafts ids outside the target's {n_vocab}")
