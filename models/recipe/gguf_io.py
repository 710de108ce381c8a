"""GGUF in and out: a target's tensors as arrays, a student as a file with the target's tokenizer, Q4_0 with compensation.

Needs only numpy, gguf and llama_cpp, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as lc
import numpy as np
from numpy.typing import NDArray

from pyspec.errors import TrainingError

FILE_TYPES = {
    "f32": lc.LLAMA_FTYPE_ALL_F32,
    "f16": lc.LLAMA_FTYPE_MOSTLY_F16,
    "q8_0": lc.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": lc.LLAMA_FTYPE_MOSTLY_Q4_0,
}
# name in a GGUF -> name in `student.Student`; {} is the number of the layer
LAYER = {
    "attn_norm": "attn_norm",
    "attn_q": "attn.q",
    "attn_k": "attn.k",
    "attn_v": "attn.v",
    "attn_output": "attn.o",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}


class Source:
    """A GGUF of one of `architectures` (none named: llama), opened for reading; raises `TrainingError` for others."""

    def __init__(self, path: Path, *architectures: str) -> None:
        try:
            self.reader = gguf.GGUFReader(path)
        except (OSError, ValueError, KeyError) as error:
            raise TrainingError(f"{path} is not a readable GGUF file", str(error)) from error
        self.path = path
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.architecture = str(self.field("general.architecture"))
        if self.architecture not in (architectures or ("llama",)):
            raise TrainingError(
                f"{path} has architecture {self.architecture}",
                "the recipe makes drafts for targets of architecture llama",
            )

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value, or `default`."""
        found = self.reader.get_field(name)
        return default if found is None else found.contents()

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A tensor, dequantised, [rows, columns]."""
        if name not in self.tensors:
            raise TrainingError(f"{self.path} has no tensor {name}", "give a complete file")
        tensor = self.tensors[name]
        return np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)

    def sizes(self) -> dict[str, Any]:
        """The sizes in the metadata, named as in `student.Shape`; all but the vocabulary's."""

        def field(name: str, default: Any = None) -> Any:
            return self.field(f"{self.architecture}.{name}", default)

        width, heads = int(field("embedding_length")), int(field("attention.head_count"))
        return {
            "width": width,
            "layers": int(field("block_count")),
            "heads": heads,
            "kv_heads": int(field("attention.head_count_kv", heads)),
            "head": int(field("attention.key_length", width // heads)),
            "ff": int(field("feed_forward_length")),
            "rope_base": float(field("rope.freq_base", 10000.0)),
            "eps": float(field("attention.layer_norm_rms_epsilon", 1e-5)),
        }

    @property
    def output_name(self) -> str:
        """The output matrix: its own tensor, or the embedding when they are tied."""
        return "output.weight" if "output.weight" in self.tensors else "token_embd.weight"


Packed = tuple[gguf.GGMLQuantizationType, NDArray[np.uint8]]
"""A quantised tensor: its type and its bytes [rows, bytes]."""


def write_gguf(
    path: Path, source: Source, shape: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any] | Packed], name: str, kind: str, arch: str = "llama",
    more: Mapping[str, int | list[int]] | None = None,
) -> None:  # fmt: skip
    """Write a model of the sizes in `shape` (named as in `student.Shape`) with the target's tokenizer.

    `tensors` are named as in the file; floating ones are written as they come. `kind`: what most of them are; `more`: further
    metadata, without the architecture's prefix.
    """
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_context_length(int(source.field("llama.context_length", 2048)))
    writer.add_embedding_length(shape["width"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["ff"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head"])
    writer.add_value_length(shape["head"])
    writer.add_rope_dimension_count(shape["head"])
    writer.add_rope_freq_base(shape["rope_base"])
    writer.add_layer_norm_rms_eps(shape["eps"])
    writer.add_vocab_size(shape["vocab"])
    for key, fact in (more or {}).items():
        add = writer.add_array if isinstance(fact, list) else writer.add_uint32
        add(f"{arch}.{key}", fact)
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _copy_tokenizer(writer, source)
    for key, value in tensors.items():
        own, data = value if isinstance(value, tuple) else (None, value)
        writer.add_tensor(key, np.ascontiguousarray(data), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(key: str) -> str:
    """GGUF name of a student's weight."""
    if key == "embedding.weight":
        return "token_embd.weight"
    if key == "norm.weight":
        return "output_norm.weight"
    _, layer, rest = key.split(".", 2)
    there = next(g for g, n in LAYER.items() if rest == f"{n}.weight")
    return f"blk.{layer}.{there}.weight"


def _copy_tokenizer(writer: gguf.GGUFWriter, source: Source) -> None:
    """Every tokenizer field of the target, the chat template included, unchanged."""
    for key, field in source.reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, inner)


# -- Q4_0 with compensation
#
# Rounding a matrix to 4 bits changes its products with the states it multiplies. Those are strongly correlated, so most of that
# change can be undone: columns are rounded one after another and each error is compensated in the columns that are still free,
# weighted by the states' second moment (GPTQ, arXiv:2210.17323, with llama.cpp's Q4_0 blocks of 32 as groups).
BLOCK = 32
F32 = NDArray[np.float32]


def _scales(block: F32) -> F32:
    """The Q4_0 scale of each row of `block` [rows, 32] with the least squared error, as float16.

    Tried: 16 sizes either side of the one that llama.cpp uses (the largest value at -8).
    """
    largest = np.take_along_axis(block, np.abs(block).argmax(1)[:, None], 1)[:, 0]
    best = np.full(len(block), np.inf, np.float32)
    found = np.zeros(len(block), np.float32)
    for step in range(-9, 7):
        scale = (largest / (-8.0 + 0.2 * step)).astype(np.float16).astype(np.float32)
        error = ((_rounded(block, scale[:, None]) - block) ** 2).sum(1)
        better = error < best
        best, found = np.where(better, error, best), np.where(better, scale, found)
    return found


def _rounded(values: F32, scale: F32) -> F32:
    """Nearest multiple -8..7 of `scale`, as a value."""
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    return np.clip(np.rint(values * inverse), -8, 7) * scale


def compensated(matrix: F32, moment: NDArray[np.float64]) -> tuple[F32, F32]:
    """(values, scales [rows, width / 32]) of `matrix` [rows, width] rounded to Q4_0.

    `moment` [width, width] is the mean of h h^T over the states that the matrix multiplies.
    """
    width = matrix.shape[1]
    damp = 0.01 * np.trace(moment) / width
    inverse = np.linalg.inv(moment + damp * np.eye(width))
    upper = np.linalg.cholesky(inverse).T.astype(np.float32)
    left, out = matrix.copy(), np.empty_like(matrix)
    every = np.empty((len(matrix), width // BLOCK), np.float32)
    for start in range(0, width, BLOCK):
        stop = start + BLOCK
        every[:, start // BLOCK] = scale = _scales(left[:, start:stop])
        errors = np.empty((len(matrix), BLOCK), np.float32)
        for column in range(start, stop):
            out[:, column] = _rounded(left[:, column], scale)
            error = (left[:, column] - out[:, column]) / upper[column, column]
            errors[:, column - start] = error
            left[:, column + 1 : stop] -= error[:, None] * upper[column, column + 1 : stop]
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    return out, every


def packed(values: F32, scale: F32) -> NDArray[np.uint8]:
    """Q4_0 bytes [rows, width / 32 * 18] of values that are multiples of their block's scale."""
    rows, width = values.shape
    blocks = values.reshape(rows, width // BLOCK, BLOCK)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    quants = (np.rint(blocks * inverse[..., None]) + 8).astype(np.uint8)
    nibbles = quants[..., :16] | (quants[..., 16:] << 4)
    heads = scale.astype("<f2")[..., None].view(np.uint8)
    return np.concatenate([heads, nibbles], -1).reshape(rows, -1)


@dataclass
class Head:
    """A tied embedding: float32 `values` [vocab, width], Q4_0 `scales` [vocab, width / 32].

    `project` [width, target width] maps a target's state to the state that this head expects.
    """

    values: NDArray[np.float32]
    scales: NDArray[np.float32]
    project: NDArray[np.float32]


def make_head(source: Source, states: NDArray[np.float32], width: int) -> Head:
    """The target's output matrix in `width` columns, rounded to Q4_0 with compensation.

    Narrower than the target: the best rank-`width` factors A B of the output matrix W for the
    states h that really occur, least E|W h - A B h|^2: with C = E[h h^T], the leading left
    singular vectors of W C^(1/2). A's columns are made orthogonal and of equal size, because
    Q4_0 shares one scale between 32 of them.
    """
    matrix = source.tensor(source.output_name)
    moment = (states.T @ states / len(states)).astype(np.float64)
    if width == matrix.shape[1]:
        project = np.eye(width, dtype=np.float32)
    else:
        matrix, project = _factors(matrix, moment, width)
    moment = project.astype(np.float64) @ moment @ project.T.astype(np.float64)
    values, scales = compensated(matrix, moment)
    return Head(values, scales, project)


def _factors(
    matrix: NDArray[np.float32], moment: NDArray[np.float64], width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(A [vocab, width], B [width, target width]); the sign and order of columns are fixed."""
    power, vectors = np.linalg.eigh(moment)
    root = (vectors * np.sqrt(power.clip(0))) @ vectors.T
    gram = root @ (matrix.T.astype(np.float64) @ matrix) @ root
    strength, basis = np.linalg.eigh(gram)
    basis, strength = basis[:, -width:], strength[-width:]
    # a rotation spreads the strong directions over all columns, for Q4_0's shared scales
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
    size = np.sqrt(np.mean(matrix.astype(np.float64) ** 2) * len(matrix))
    left = basis / np.sqrt(strength) @ turn * size
    inverse = (vectors / np.sqrt(power.clip(1e-6))) @ vectors.T
    back = turn.T @ (basis * np.sqrt(strength)).T / size
    return (matrix @ (root @ left)).astype(np.float32), (back @ inverse).astype(np.float32)
