"""A pair of models of any size ratio, made of one file: a stretched target and its shortened draft.

    python bench/stretch.py MODEL.gguf OUT.gguf --times 8         idle blocks behind each of its own
    python bench/stretch.py MODEL.gguf OUT.gguf --drop 9,14,21    some of its blocks left out

An idle block is a copy of the one before it whose attn_output and ffn_down are zero: it is computed like
any other and adds nothing. So the stretched target says what MODEL says, at the cost of a model that many
times as deep; acceptance and cost of a pair can be set apart. Tensors keep MODEL's type.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from common import arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_ADDS = ("attn_output.weight", "ffn_down.weight", "attn_output.bias", "ffn_down.bias")


def stretch(source: Path, out: Path, times: int) -> None:
    """Write `source` with times - 1 idle blocks after each of its blocks."""
    blocks = range(_count(gguf.GGUFReader(source)))
    _write(source, out, [(i, copy > 0) for i in blocks for copy in range(times)])


def shorten(source: Path, out: Path, drop: Sequence[int]) -> None:
    """Write `source` without the blocks in `drop`."""
    blocks = range(_count(gguf.GGUFReader(source)))
    _write(source, out, [(i, False) for i in blocks if i not in drop])


def _count(reader: Any) -> int:
    architecture = reader.get_field("general.architecture").contents()
    return int(reader.get_field(f"{architecture}.block_count").contents())


def _write(source: Path, out: Path, blocks: Sequence[tuple[int, bool]]) -> None:
    """blocks: of the new file, in order: which block of `source`, and whether it is idle."""
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = len(blocks) if name == f"{architecture}.block_count" else field.contents()
        sub_type = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, value, field.types[0], sub_type)
    for name, data, kind in _tensors(reader, blocks):
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(reader: Any, blocks: Sequence[tuple[int, bool]]) -> Iterator[tuple[str, Any, Any]]:
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


def main(words: Sequence[str] | None = None) -> None:
    """Make one file."""
    options = arguments(__doc__, words, "model", "out", times=0, drop="")
    if bool(options.times) == bool(options.drop):
        print("give either --times or --drop", file=sys.stderr)
        raise SystemExit(2)
    if options.times:
        stretch(Path(options.model), Path(options.out), options.times)
    else:
        drop = [int(n) for n in options.drop.split(",")]
        shorten(Path(options.model), Path(options.out), drop)


if __name__ == "__main__":
    main()
