"""Makes a pair of models with any size ratio from one file: a stretched target and its shortened draft.

    python bench/stretch.py MODEL.gguf OUT.gguf --times 8         idle blocks after each of its own
    python bench/stretch.py MODEL.gguf OUT.gguf --drop 9,14,21    some of its blocks left out

An idle block is a copy of the one before it whose attn_output and ffn_down are zero: it is computed like any other and adds
nothing. So the stretched target gives MODEL's answers, at the cost of a model that many times as deep. Acceptance and cost of a
pair can thus be set separately. Tensors keep MODEL's type.
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


def stretch(source: Path, out: Path, times: int = 1, drop: Sequence[int] = ()) -> None:
    """Write `source` without the blocks in `drop`, and with times - 1 idle blocks after each of the others."""
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
        writer.add_key_value(name, value, field.types[0], sub_type)
    for name, data, kind in _tensors(reader, blocks):
        writer.add_tensor(name, data, raw_dtype=kind)
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


def main(words: Sequence[str] | None = None) -> None:
    """Make one file."""
    options = arguments(__doc__, words, "model", "out", times=1, drop="")
    drop = [int(n) for n in options.drop.split(",") if n]
    if options.times == 1 and not drop:
        print("give --times, --drop or both", file=sys.stderr)
        raise SystemExit(2)
    stretch(Path(options.model), Path(options.out), options.times, drop)


if __name__ == "__main__":
    main()
