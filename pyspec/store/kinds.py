"""Kinds of models that are no decoders, and those whose positions are a table of so many rows."""

from __future__ import annotations

from pathlib import Path

from pyspec.errors import UnsupportedModel
from pyspec.store.files import show
from pyspec.store.header import facts_of

_EMBEDDER = "turns texts into embeddings"
_DIFFUSION = "fills in a text in no order (diffusion)"
_ENCODER_DECODER = "encodes a whole text and then decodes another"

_EMBEDDERS = (
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding "
    "llama-embed t5encoder"
)
_PURPOSE = {
    **dict.fromkeys(_EMBEDDERS.split(), _EMBEDDER),
    **dict.fromkeys(["dream", "llada", "llada-moe", "rnd1"], _DIFFUSION),
    "t5": _ENCODER_DECODER,
    "wavtokenizer-dec": "makes sound of codes",
    "dflash": "drafts for another model in a way of its own",
    "gemma4-assistant": "drafts for another model in a way of its own",
}
"""What models are for that answer nothing token by token: llama.cpp ends the process for some and returns noise for others."""

_NO_DECODE = frozenset(["t5", "t5encoder", "dflash", "gemma4-assistant"])
"""Of those, the ones that llama-cpp-python does not even take embeddings from: it asserts."""


def refuse_other_kinds(model: Path, *, embedding: bool = False) -> None:
    """Raises UnsupportedModel for a file whose model does not answer token by token.

    embedding: embeddings alone are wanted of it.
    """
    facts = facts_of(model)
    purpose = _PURPOSE.get(facts.architecture) if facts is not None else None
    if facts is None or purpose is None:
        return
    if embedding and facts.architecture not in _NO_DECODE:
        return
    raise no_decoder(model, f"a {facts.architecture} model, which {purpose}")


def no_decoder(model: Path, what: str = "a model without a memory for tokens") -> UnsupportedModel:
    """The error for a model that does not answer token by token."""
    return UnsupportedModel(
        f"{show(model.name)} is {what}; it does not answer token by token",
        "use a decoder, such as a chat or instruct model",
    )


def most_positions(model: Path) -> int | None:
    """Tokens that a model with learned positions can hold, None for others: llama.cpp ends the process beyond."""
    facts = facts_of(model)
    return facts.positions or None if facts is not None else None
