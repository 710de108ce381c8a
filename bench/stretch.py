"""Makes a pair of models with any size ratio from one file: a stretched target and its shortened draft.

    python bench/stretch.py MODEL.gguf OUT.gguf --times 8         idle blocks after each of its own
    python bench/stretch.py MODEL.gguf OUT.gguf --wide 8          states, heads and feed-forward layers that many times as wide
    python bench/stretch.py MODEL.gguf OUT.gguf --drop 9,14,21    some of its blocks left out

An idle block is a copy of the one before it whose attn_output and ffn_down are zero: it is computed like any other and adds
nothing. What a wide model has more is zeros, which are multiplied like any numbers and add nothing. So the stretched target gives
MODEL's answers, at the cost of a model that many times as deep or wide: depth suits CPUs; a graphics card, where each small step
costs as much as a large one, tells more with width. Acceptance and cost of a pair can thus be set separately. Tensors keep
MODEL's type.
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
_OF_A_HEAD = ("attn_q_norm.weight", "attn_k_norm.weight", "rope_freqs.weight")
_EPSILON = "attention.layer_norm_rms_epsilon"


def stretch(
    source: Path, out: Path, times: int = 1, drop: Sequence[int] = (), wide: int = 1
) -> None:
    """Write `source` without the blocks in `drop`, with times - 1 idle blocks after each of the others, `wide` times as wide."""
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
    for name, data, kind in _tensors(reader, blocks):
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
    options = arguments(__doc__, words, "model", "out", times=1, drop="", wide=1)
    drop = [int(n) for n in options.drop.split(",") if n]
    if options.times == options.wide == 1 and not drop:
        print("give --times, --wide or --drop", file=sys.stderr)
        raise SystemExit(2)
    stretch(Path(options.model), Path(options.out), options.times, drop, options.wide)


if __name__ == "__main__":
    main()
