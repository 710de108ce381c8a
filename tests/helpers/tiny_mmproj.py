"""A random projector of a few kilobytes, which turns an image into four rows of a tiny model's inputs."""

import base64
import struct
from pathlib import Path

import gguf
import numpy as np

from helpers import tiny

_SIDE, _PATCH, _WIDTH, _HEADS = 8, 4, 16, 2
N_ROWS = (_SIDE // _PATCH) ** 2
"""Rows that an image becomes."""


def write(path: Path, seed: int = 1) -> Path:
    """Write one of LLaVA's kind."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    sizes = {
        "image_size": _SIDE, "patch_size": _PATCH, "embedding_length": _WIDTH, "feed_forward_length": 2 * _WIDTH,
        "block_count": 2, "attention.head_count": _HEADS, "projection_dim": tiny.N_EMBD,
    }  # fmt: skip
    for name, size in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", size)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    for name, shape in _shapes(tiny.N_EMBD).items():
        scales = ".ln" in name and "weight" in name
        data = np.ones(shape) if scales else random.normal(0, 0.3, shape)
        writer.add_tensor(name, data.astype(np.float32))
    return tiny.written(writer, path)


def _shapes(n_embd: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (_WIDTH, 3, _PATCH, _PATCH),
        "v.position_embd.weight": (N_ROWS, _WIDTH),
        "mm.0.weight": (n_embd, _WIDTH), "mm.0.bias": (n_embd,),
        "mm.2.weight": (n_embd, n_embd), "mm.2.bias": (n_embd,),
    }  # fmt: skip
    for i in range(2):
        for part in ("attn_q", "attn_k", "attn_v", "attn_out", "ln1", "ln2"):
            rows = (_WIDTH,) if part.startswith("ln") else (_WIDTH, _WIDTH)
            found[f"v.blk.{i}.{part}.weight"], found[f"v.blk.{i}.{part}.bias"] = rows, (_WIDTH,)
        found[f"v.blk.{i}.ffn_up.weight"] = (2 * _WIDTH, _WIDTH)
        found[f"v.blk.{i}.ffn_down.weight"] = (_WIDTH, 2 * _WIDTH)
    return found


def picture(seed: int = 0) -> str:
    """A random picture of 8 by 8 pixels, as a data URL."""
    pixels = np.random.default_rng(seed).integers(0, 256, 3 * _SIDE * _SIDE, np.uint8).tobytes()
    head = struct.pack("<2sIHHI", b"BM", 54 + len(pixels), 0, 0, 54)
    sizes = struct.pack("<IiiHHIIiiII", 40, _SIDE, _SIDE, 1, 24, 0, len(pixels), 0, 0, 0, 0)
    return "data:image/bmp;base64," + base64.b64encode(head + sizes + pixels).decode()
