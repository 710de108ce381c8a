"""Kinds of models that are not decoders, and models with a table of learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pyspec.errors import UnsupportedModel
from pyspec.gguf.header import facts_of
from pyspec.gguf.heads import STATE_KINDS
from pyspec.machine.files import show

_EMBEDDER = "turns texts into embeddings"
_DIFFUSION = "generates text by diffusion"
_ENCODER_DECODER = "has an encoder and a decoder"

_EMBEDDERS = (
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding "
    "llama-embed t5encoder"
)
_PURPOSE = {
    **dict.fromkeys(_EMBEDDERS.split(), _EMBEDDER),
    **dict.fromkeys(["dream", "llada", "llada-moe", "rnd1"], _DIFFUSION),
    "t5": _ENCODER_DECODER,
    "wavtokenizer-dec": "turns codes into sound",
}
"""Purpose of models that do not generate token by token: llama.cpp ends the process for some and returns noise for others."""

PURPOSES = {
    "eagle3": "an EAGLE-3 head, which drafts for the one model that it was trained with",
    "mtp": "the next-token head (MTP) of a model, which drafts for that model",
    "gemma4-assistant": "a Gemma 4 assistant, which drafts for the Gemma 4 model that it was trained with",
    "dflash": "a DFlash draft, which proposes a block of tokens at once for the one model that it was trained with",
    "dspark": "a DSpark draft, which proposes a block of tokens at once for the one model that it was trained with",
    "mmproj": "a projector, which turns images or sound into a model's inputs",
    "lora": "a LoRA adapter, which changes a model (--lora)",
    "vocabulary": "a vocabulary without weights",
}
"""Descriptions of files that are not a model by themselves, by `Facts.kind`."""

_NO_DECODE = frozenset(["t5", "t5encoder"])
"""Architectures from which llama-cpp-python cannot even take embeddings: it asserts."""

_HINTS = {
    **dict.fromkeys(STATE_KINDS, "give it as --draft beside that model"),
    "lora": "give it as --lora beside a model",
    "vocabulary": "use a file with weights",
    "mmproj": "use the model that it belongs to",
}
"""What to do instead, by kind."""


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
        raise not_alone(model, facts.kind)
    purpose = _PURPOSE.get(facts.architecture)
    causal = overrides.get(f"{facts.architecture}.attention.causal", facts.causal)
    if embedding and facts.architecture not in _NO_DECODE:
        return
    if purpose is not None:
        raise no_decoder(model, f"a {facts.architecture} model, which {purpose}")
    if not causal:
        raise no_decoder(model, "a model whose attention is not causal")


def not_alone(model: Path, kind: str) -> UnsupportedModel:
    """Return the error for a file that is not a model by itself."""
    return UnsupportedModel(
        f"{show(model.name)} is {PURPOSES[kind]}; it cannot answer by itself", _HINTS[kind]
    )


def no_decoder(
    model: Path, what: str = "a model without a KV cache or recurrent state"
) -> UnsupportedModel:
    """Return the error for a model that does not generate token by token."""
    return UnsupportedModel(
        f"{show(model.name)} is {what}; it does not generate token by token",
        "use a decoder, such as a chat or instruct model",
    )


def most_positions(model: Path) -> int | None:
    """Return how many tokens a model with learned positions can hold; beyond, llama.cpp ends the process. None for others."""
    facts = facts_of(model)
    return facts.positions or None if facts is not None else None
