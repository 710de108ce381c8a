"""Makes a pair of models with any size ratio from one file: a stretched target and its shortened draft.

    python bench/stretch.py MODEL.gguf OUT.gguf --times 8         idle blocks after each of its own
    python bench/stretch.py MODEL.gguf OUT.gguf --wide 8          states, heads and feed-forward layers that many times as wide
    python bench/stretch.py MODEL.gguf OUT.gguf --drop 9,14,21    some of its blocks left out
    python bench/stretch.py MODEL.gguf OUT.gguf --experts 64 --active 8    a mixture of experts

An idle block is a copy of the one before it whose attn_output and ffn_down are zero: it is computed like any other and adds
nothing. What a wide model has more is zeros, which are multiplied like any numbers and add nothing. So the stretched target gives
MODEL's answers, at the cost of a model that many times as deep or wide: depth suits CPUs; a graphics card, where each small step
costs as much as a large one, tells more with width. Each expert of a mixture is a copy of the block's feed-forward layer, and a
router of random numbers chooses which are used. Their weights have the sum 1, so together they say what one says, but for
rounding, at the cost of a mixture, where more rows read more experts. Acceptance and cost of a pair can thus be set separately.
Tensors keep MODEL's type. A mixture is made of a model of the architecture llama.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from common import arguments

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_ADDS = ("attn_output.weight", "ffn_down.weight", "attn_output.bias", "ffn_down.bias")
_WIDTHS = (
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
)
_FEED_FORWARD = re.compile(r"blk\.(\d+)\.(ffn_gate|ffn_up|ffn_down)\.weight")
F32 = gguf.GGMLQuantizationType.F32
_OF_A_HEAD = ("attn_q_norm.weight", "attn_k_norm.weight", "rope_freqs.weight")
_EPSILON = "attention.layer_norm_rms_epsilon"


def stretch(
    source: Path, out: Path, times: int = 1, drop: Sequence[int] = (), wide: int = 1,
    experts: tuple[int, int] = (0, 0),
) -> None:  # fmt: skip
    """Write `source` without the blocks in `drop`, with times - 1 idle blocks after each of the others, `wide` times as wide.

    experts: how many each block has, and how many of them a token uses; 0 for none.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    count = int(reader.get_field(f"{architecture}.block_count").contents())
    blocks = [(i, copy > 0) for i in range(count) if i not in drop for copy in range(times)]
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = len(blocks) if name == f"{architecture}.block_count" else field.contents()
        sub_type = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(
            name, _widened(name.partition(".")[2], value, wide), field.types[0], sub_type
        )
    count, active = experts
    if count:
        writer.add_expert_count(count)
        writer.add_expert_used_count(active)
    for name, data, kind in _mixed(_tensors(reader, blocks), count):
        writer.add_tensor(name, _padded(name, data, wide), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(reader: Any, blocks: Sequence[tuple[int, bool]]) -> Iterator[tuple[str, Any, Any]]:
    """The new file's tensors. blocks: for each of its blocks, the source's block, and whether it is idle."""
    own: dict[int, list[tuple[str, Any]]] = {}
    for tensor in reader.tensors:
        if match := _BLOCK.fullmatch(tensor.name):
            own.setdefault(int(match[1]), []).append((match[2], tensor))
        else:
            yield tensor.name, tensor.data, tensor.tensor_type
    for new, (old, idle) in enumerate(blocks):
        for name, tensor in own[old]:
            # a block of zero bytes is a block of zeros in every tensor type
            data = np.zeros_like(tensor.data) if idle and name in _ADDS else tensor.data
            yield f"blk.{new}.{name}", data, tensor.tensor_type


def _mixed(tensors: Iterator[tuple[str, Any, Any]], count: int) -> Iterator[tuple[str, Any, Any]]:
    """The tensors with `count` experts and a router in place of each feed-forward layer; as they are for 0."""
    for name, data, kind in tensors:
        if not count or not (match := _FEED_FORWARD.fullmatch(name)):
            yield name, data, kind
            continue
        block, part = match.groups()
        yield f"blk.{block}.{part}_exps.weight", np.broadcast_to(data, (count, *data.shape)), kind
        if part == "ffn_gate":
            router = np.random.default_rng(int(block)).standard_normal((count, _width(data, kind)))
            yield f"blk.{block}.ffn_gate_inp.weight", router.astype(np.float32), F32


def _width(data: Any, kind: Any) -> int:
    """Numbers in a row of a tensor. data: as the file has it, quantised rows in bytes."""
    size, nbytes = gguf.GGML_QUANT_SIZES[kind]
    return int(data.shape[-1] * data.itemsize // nbytes * size)


def _widened(name: str, value: Any, wide: int) -> Any:
    """A value of the metadata in a model `wide` times as wide."""
    if name in _WIDTHS:
        return value * wide
    return value / wide if name == _EPSILON else value


def _padded(name: str, data: Any, wide: int) -> Any:
    """A tensor with zeros behind each row and below the last.

    The mean square of a state is as much smaller as it is wider, so its norm takes the square root of that into its weights.
    """
    if wide == 1 or name.endswith(_OF_A_HEAD):
        return data
    if name.endswith("norm.weight"):
        data = data / np.sqrt(np.float32(wide))
    words = name in ("token_embd.weight", "output.weight")
    return np.pad(
        data,
        [
            (0, 0 if words and axis == 0 else size * (wide - 1))
            for axis, size in enumerate(data.shape)
        ],
    )


def main(words: Sequence[str] | None = None) -> None:
    """Make one file."""
    given = {"times": 1, "drop": "", "wide": 1, "experts": 0, "active": 8}
    options = arguments(__doc__, words, "model", "out", **given)
    drop = [int(n) for n in options.drop.split(",") if n]
    if options.times == options.wide == 1 and not drop and not options.experts:
        print("give --times, --wide, --drop or --experts", file=sys.stderr)
        raise SystemExit(2)
    experts = (options.experts, options.active)
    stretch(Path(options.model), Path(options.out), options.times, drop, options.wide, experts)


if __name__ == "__main__":
    main()
