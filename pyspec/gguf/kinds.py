"""What a file is for: models that are no decoders, files that are no model by themselves, and drafts that read a target's states.

Those are EAGLE-3, DFlash, DSpark and Gemma 4 assistant files, and next-token heads (MTP). EAGLE-3 (arXiv 2503.01840) drafts are
one decoder layer that reads the inputs of three of the target's layers. llama.cpp ends the process by an assertion if widths,
layers or ids do not fit the target. So everything that it asserts is checked here first, from the header alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pyspec.errors import DraftMismatch, ModelInvalid, UnsupportedModel
from pyspec.gguf.header import MARKOV, facts_of, header_of_parts
from pyspec.gguf.reader import Array, Header, parse_header
from pyspec.machine.files import show
from pyspec.machine.others import file_name_of

EAGLE3 = "eagle3"  # the architecture of EAGLE-3 files. Each is made for one target only, even if the vocabulary fits others
MTP = "mtp"  # the name of the draft by the target's own next-token head, and the kind of a file that holds only such heads

ASSISTANT = "gemma4-assistant"
DFLASH = "dflash"
DSPARK = "dspark"

NAMES = {
    EAGLE3: "EAGLE-3 head",
    MTP: "next-token head",
    ASSISTANT: "Gemma 4 assistant",
    DFLASH: "DFlash draft",
    DSPARK: "DSpark draft",
}

STATE_KINDS = frozenset(NAMES)  # kinds of draft files that read the states of one particular target

_LAST = "qwen3next qwen35 qwen35moe gpt-oss gemma4 nemotron_h nemotron_h_moe mimo2 deepseek4 bailingmoe3"
_INPUTS = f"{_LAST} llama qwen3 qwen3moe lfm2 lfm2moe hunyuan-dense hunyuan_vl minimax-01 minimax-m2 muse-glimmer nanbeige"

# architectures whose layer inputs llama.cpp can return; for others it ends the process
SHOWS_LAYERS = frozenset(_INPUTS.split())
SHOWS_LAST = frozenset(_LAST.split())  # those that can also return the output of the last layer

_ONE_HEAD = "qwen35 qwen35moe qwen3next bailingmoe3 cohere2moe deepseek2 deepseek32 glm-dsa glm4moe nemotron_h_moe"
ONE_HEAD = frozenset(_ONE_HEAD.split())
"""Architectures whose next-token head (MTP) is one trained layer, run again for each token. llama.cpp has a graph for it, and
asserts that there is only one."""

STREAMS = frozenset(["deepseek4"])  # whose states are of several streams, which nothing here reads
CHAINED_HEADS = frozenset(["hy_v3", "mimo2", "step35"])  # may have a head for each drafted token

MAX_HEADS = 8

_NO_STATES = "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7 jamba falcon-h1 plamo2 granitehybrid qwen3next kimi-linear minimax-01"
NO_STATES = frozenset(_NO_STATES.split())
"""Recurrent and hybrid architectures whose states llama.cpp cannot roll back, so that nothing can be drafted for them."""

_BLOCK = 16  # rows of a DFlash block if the file does not say

_MAX_ROWS = 64
_MAX_LAYERS = 16

_WINDOW = {EAGLE3: 64, MTP: 64, ASSISTANT: 1, DFLASH: 256, DSPARK: 256}


@dataclass(frozen=True)
class TargetShape:
    """What a draft that reads states needs to know of its target."""

    architecture: str
    n_layer: int  # without next-token heads
    n_embd: int
    n_vocab: int


@dataclass(frozen=True)
class BlockShape:
    """The input of a draft that proposes a block at once: the last token, then mask tokens."""

    rows: int  # at most
    mask: int
    first: int = 1  # the row that predicts the first drafted token
    sure: bool = False  # rows also predict the acceptance of their tokens
    causal: bool = False  # no row attends to later ones


@dataclass(frozen=True)
class States:
    """How a draft with its own context reads the target's states."""

    kind: str  # one of `STATE_KINDS`
    n_hidden: int  # floats of a state, all layers together
    width: int  # floats of one input of the draft
    # whose inputs it reads, -1 for the last one's output; empty: as the target's next-token heads
    layers: tuple[int, ...] = ()
    inside: bool = False  # its layers are in the target's file
    block: BlockShape | None = None  # for a draft that proposes a block at once
    heads: int = 1  # next-token heads, each for one drafted token; a single one drafts all

    @property
    def window(self) -> int:
        """How many tokens before the end the draft starts to read a text.

        The target's states already reflect earlier tokens; reading more of a long prompt costs more than it gains
        (models/README.md). A Gemma 4 assistant reads the target's own KV cache.
        """
        return _WINDOW[self.kind]

    @property
    def longest(self) -> int | None:
        """Most tokens of a draft, or None for no limit."""
        if self.block is not None:
            return self.block.rows - self.block.first
        return self.heads if self.heads > 1 else None


def n_heads(model: Path) -> int:
    """Return how many next-token heads a file holds that llama.cpp can run."""
    facts = facts_of(model)
    if facts is None or facts.architecture in NO_STATES:
        return 0
    chained = facts.architecture in CHAINED_HEADS and facts.heads <= MAX_HEADS
    one = facts.architecture in ONE_HEAD and facts.heads == 1
    return facts.heads if chained or one else 0


def why_plain(model: Path) -> str:
    """Return a sentence for a model that nothing can be drafted for; empty for others."""
    facts = facts_of(model)
    if facts is None or facts.architecture not in NO_STATES:
        return ""
    also = ", its next-token head (MTP) left unused" if facts.heads else ""
    return f"llama.cpp keeps no states of {facts.architecture} models to go back to: they decode plainly{also}"


def unused_heads(model: Path) -> str:
    """Return a sentence for a model with next-token heads that do not run; empty for others."""
    facts = facts_of(model)
    if facts is None or not facts.heads or n_heads(model) or facts.architecture in NO_STATES:
        return ""
    of = f"{facts.architecture} models"
    heads, it = ("head (MTP) stays", "it") if facts.heads == 1 else ("heads (MTP) stay", "them")
    why = f"this llama.cpp has no graph for {it} in {of}"
    if facts.architecture in STREAMS:
        why = f"{of} have states of several streams, which it cannot be given"
    return f"its next-token {heads} unused: {why}"


def head_size(model: Path) -> int:
    """Return the bytes that a step of a model's next-token head reads: its layer and the output matrix."""
    header = header_of_parts(model)
    layers, sizes = header.of_arch("block_count"), {t.name: t.nbytes for t in header.tensors}
    last = f"blk.{layers - 1 if isinstance(layers, int) else 0}."
    output = sizes.get("output.weight", sizes.get("token_embd.weight", 0))
    return output + sum(size for name, size in sizes.items() if name.startswith(last))


def kind_of_draft(draft: Path) -> str:
    """Return the kind of a GGUF file that reads a target's states, or the empty string. Raises ModelError if it is not GGUF."""
    facts = facts_of(draft)
    kind = facts.kind if facts is not None else parse_header(draft).architecture
    return kind if kind in STATE_KINDS else ""


def read_states(draft: Path, target: TargetShape) -> States | None:
    """Return how a draft file reads its target's states; None if it reads none.

    Raises ModelInvalid for a contradictory file, DraftMismatch for one made for another target, UnsupportedModel if llama.cpp
    cannot run it, or cannot return the states that it reads.
    """
    if not (kind := kind_of_draft(draft)):
        return None
    readers = {EAGLE3: _read_eagle3, MTP: _read_mtp, ASSISTANT: _read_assistant}
    return readers.get(kind, _read_block)(header_of_parts(draft), target)


def _read_assistant(header: Header, target: TargetShape) -> States:
    if target.architecture != "gemma4":
        raise _mismatch(header, f"it reads Gemma 4's memory, the target is {target.architecture}")
    width = _states_width(header, "embedding_length_out", target)
    return States(ASSISTANT, width, width)


def _read_block(header: Header, target: TargetShape) -> States:
    """Read DFlash (arXiv 2602.06036) or DSpark, which has a Markov head and may predict its acceptance."""
    names = {tensor.name for tensor in header.tensors}
    if "selector_hidden.weight" in names:
        raise _unsupported(header, "is a DFlash 2 draft, whose selector does not run here")
    layers = _layers(header, target)
    width = _states_width(header, "embedding_length", target)
    _check_ends(header, width, target)
    mask = header.metadata.get("tokenizer.ggml.mask_token_id")
    if type(mask) is not int or not 0 <= mask < min(header.vocab_size, target.n_vocab):
        raise _damaged(header, "does not say which token stands for one to be drafted")
    rows = _whole(header, "block_size") if header.of_arch("block_size") is not None else _BLOCK
    kind = DSPARK if MARKOV in names else DFLASH
    anchored = kind == DSPARK and header.of_arch("sample_from_anchor") is not False
    sure, causal = "conf_proj.weight" in names, header.of_arch("attention.causal") is True
    block = BlockShape(min(rows, _MAX_ROWS), mask, 0 if anchored else 1, sure, causal)
    if block.rows <= block.first:
        raise _damaged(header, "proposes no token")
    return States(kind, len(layers) * width, width, layers, block=block)


def _read_mtp(header: Header, target: TargetShape) -> States:
    if header.architecture != target.architecture:
        what = f"it is of {header.architecture}, the target of {target.architecture}"
        raise _mismatch(header, what)
    heads = n_heads(header.path)
    if not heads:
        raise _unsupported(header, "has next-token heads of a kind that llama.cpp does not run")
    width = _states_width(header, "embedding_length", target)
    return States(MTP, width, width, heads=heads)


def _read_eagle3(header: Header, target: TargetShape) -> States:
    layers = _layers(header, target)
    hidden = _states_width(header, "target_hidden_size", target)
    width = _whole(header, "embedding_length")
    if header.of_arch("embedding_length_out") not in (None, width):
        raise _damaged(header, "gives states of another width than it works with")
    # llama.cpp ends the process for texts beyond one batch
    if header.of_arch("attention.causal") is False:
        raise _damaged(header, "looks at tokens that are still to come")
    if _whole(header, "block_count") != 1:
        raise _damaged(header, "has more than one layer")
    _check_ends(header, width, target)
    return States(EAGLE3, 3 * hidden, width, layers)


def _states_width(header: Header, key: str, target: TargetShape) -> int:
    """Return the width of the states that the draft reads, which must be the target's."""
    width = _whole(header, key)
    if width != target.n_embd:
        raise _mismatch(header, f"it reads states {width} wide, the target's are {target.n_embd}")
    return width


def _whole(header: Header, key: str) -> int:
    value = header.of_arch(key)
    if type(value) is not int or value < 1:
        raise _damaged(header, f"does not say its {key}")
    return value


def _damaged(header: Header, what: str) -> ModelInvalid:
    return ModelInvalid(f"{file_name_of(header.path)} {what}", "convert it again")


def _mismatch(header: Header, what: str) -> DraftMismatch:
    return DraftMismatch(f"{file_name_of(header.path)}: {what}", "it was made for another target")


def _unsupported(header: Header, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{file_name_of(header.path)} {what}", "use another draft")


def _layers(header: Header, target: TargetShape) -> tuple[int, ...]:
    import numpy as np  # noqa: PLC0415 - only few files are read this far

    key = f"{header.architecture}.target_layers"
    value = header.metadata.get(key)
    listed = header.array(key) if isinstance(value, Array) else []
    layers = [int(i) for i in listed if isinstance(i, np.integer)]
    if len(layers) != len(listed) or (header.architecture == EAGLE3 and len(layers) != 3):
        raise _damaged(header, "does not name three layers")
    if not 0 < len(layers) <= _MAX_LAYERS:
        raise _damaged(header, f"does not name 1 to {_MAX_LAYERS} layers")
    if not all(0 <= layer <= target.n_layer for layer in layers):
        raise _mismatch(header, f"it reads layers {layers}, the target has {target.n_layer}")
    shows = SHOWS_LAST if target.n_layer in layers else SHOWS_LAYERS
    if target.architecture not in shows:
        what = f"reads layers of {target.architecture} models, which llama.cpp does not expose"
        raise _unsupported(header, what)
    return tuple(-1 if layer == target.n_layer else layer for layer in layers)


def _check_ends(header: Header, width: int, target: TargetShape) -> None:
    """Check embeddings, head and vocabulary, its own or the target's."""
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
        what = f"it embeds {embeddings[1]} tokens, the target has {target.n_vocab}"
        raise _mismatch(header, what)
    if "d2t" in shapes:
        _check_ids(header, min(n_vocab, target.n_vocab))


def _check_ids(header: Header, n_vocab: int) -> None:
    """Check the ids of the target's vocabulary to which llama.cpp scatters the draft's logits."""
    import numpy as np  # noqa: PLC0415 - as above

    split = len(header.parts) > 1
    parts = map(parse_header, header.parts) if split else [header]  # whose offsets are their own
    path, tensor = next(
        (part.path, tensor) for part in parts for tensor in part.tensors if tensor.name == "d2t"
    )
    if tensor.type.upper() != "I64":
        raise _damaged(header, f"keeps d2t as {tensor.type}")
    ids = np.fromfile(path, np.int64, tensor.nbytes // 8, offset=tensor.offset)
    if ids.size == 0 or ids.min() < 0 or ids.max() >= n_vocab:
        raise _mismatch(header, f"it drafts ids outside the target's {n_vocab}")


# -- kinds that do not answer by themselves ----------------------------------------------------------------------------

_EMBEDDERS = (
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding "
    "llama-embed t5encoder"
)
_PURPOSE = {
    **dict.fromkeys(_EMBEDDERS.split(), "turns texts into embeddings"),
    **dict.fromkeys(["dream", "llada", "llada-moe", "rnd1"], "generates text by diffusion"),
    "t5": "has an encoder and a decoder",
    "wavtokenizer-dec": "turns codes into sound",
}
"""Purpose of models that do not generate token by token: llama.cpp ends the process for some and returns noise for others."""

_DRAFTS = {
    kind: (f"a draft ({name}), made for one model", "give it as --draft beside that model")
    for kind, name in NAMES.items()
}
PURPOSES = {
    **_DRAFTS,
    "mmproj": ("a projector, which turns images or sound into a model's inputs", "use the model that it belongs to"),
    "lora": ("a LoRA adapter, which changes a model (--lora)", "give it as --lora beside a model"),
    "vocabulary": ("a vocabulary without weights", "use a file with weights"),
}  # fmt: skip
"""What files are that are no model by themselves, and what to do instead, by `Facts.kind`."""

_NO_DECODE = frozenset(["t5", "t5encoder"])  # llama-cpp-python asserts even for embeddings


def refuse_other_kinds(
    model: Path, *, embedding: bool = False, overrides: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Raise UnsupportedModel for a file whose model does not generate token by token.

    embedding: whether only embeddings are wanted. overrides: header values that replace the file's.
    """
    facts = facts_of(model)
    if facts is None:
        return
    if facts.kind in PURPOSES:
        what, hint = PURPOSES[facts.kind]
        raise UnsupportedModel(f"{show(model.name)} is {what}; it cannot answer by itself", hint)
    purpose = _PURPOSE.get(facts.architecture)
    causal = overrides.get(f"{facts.architecture}.attention.causal", facts.causal)
    if embedding and facts.architecture not in _NO_DECODE:
        return
    if purpose is not None:
        raise no_decoder(model, f"a {facts.architecture} model, which {purpose}")
    if not causal:
        raise no_decoder(model, "a model whose attention is not causal")


def no_decoder(
    model: Path, what: str = "a model without a KV cache or recurrent state"
) -> UnsupportedModel:
    told = f"{show(model.name)} is {what}; it does not generate token by token"
    return UnsupportedModel(told, "use a decoder, such as a chat or instruct model")


def most_positions(model: Path) -> int | None:
    """Return how many tokens a model with learned positions can hold; beyond, llama.cpp ends the process. None for others."""
    facts = facts_of(model)
    return facts.positions or None if facts is not None else None
