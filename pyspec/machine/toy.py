"""A model of one layer that costs next to nothing but its attention, which is that of a real model.

llama.cpp's time for attention depends on the number of heads and their widths, not on weights. So a file of a few hundred
kilobytes tells how long attention takes behind thousands of tokens, which a real model would have to read.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

_WIDTH, _WORDS = 32, 32
_MAX_CONTEXT = 1 << 20
_ALIGNED = 32
_F32, _U32, _STRING = 6, 4, 8  # GGUF's numbers for kinds of values


class Heads(NamedTuple):
    """The shape of a model's attention: query heads, key and value heads, and the width of a key and of a value."""

    query: int
    key_value: int
    key_width: int
    value_width: int


def write_toy(path: Path, heads: Heads) -> None:
    """Write the model as a GGUF of the architecture "llama", with random weights."""
    values = _header(heads)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors := _tensors(heads)), len(values))
    head += b"".join(_text(key) + _value(value) for key, value in values.items())
    data, random = b"", np.random.default_rng(0)
    for name, shape in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", 0, len(data))  # type 0 is F32
        data += _padded((0.1 * random.standard_normal(shape)).astype("<f4").tobytes())
    path.write_bytes(_padded(head) + data)


def _header(heads: Heads) -> dict[str, str | int | float]:
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "no_vocab",
        "llama.vocab_size": _WORDS,
        "llama.block_count": 1,
        "llama.context_length": _MAX_CONTEXT,
        "llama.embedding_length": _WIDTH,
        "llama.feed_forward_length": _WIDTH,
        "llama.attention.head_count": heads.query,
        "llama.attention.head_count_kv": heads.key_value,
        "llama.attention.key_length": heads.key_width,
        "llama.attention.value_length": heads.value_width,
        "llama.rope.dimension_count": heads.key_width,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }


def _tensors(heads: Heads) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights, inner dimension first."""
    return {
        "token_embd.weight": (_WIDTH, _WORDS),
        "output_norm.weight": (_WIDTH,),
        "blk.0.attn_norm.weight": (_WIDTH,),
        "blk.0.attn_q.weight": (_WIDTH, heads.query * heads.key_width),
        "blk.0.attn_k.weight": (_WIDTH, heads.key_value * heads.key_width),
        "blk.0.attn_v.weight": (_WIDTH, heads.key_value * heads.value_width),
        "blk.0.attn_output.weight": (heads.query * heads.value_width, _WIDTH),
        "blk.0.ffn_norm.weight": (_WIDTH,),
        "blk.0.ffn_gate.weight": (_WIDTH, _WIDTH),
        "blk.0.ffn_up.weight": (_WIDTH, _WIDTH),
        "blk.0.ffn_down.weight": (_WIDTH, _WIDTH),
    }


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _value(value: str | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    return (
        struct.pack("<II", _U32, value)
        if isinstance(value, int)
        else struct.pack("<If", _F32, value)
    )


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNED)
