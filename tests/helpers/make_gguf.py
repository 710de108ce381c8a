"""Writes GGUF files by hand, good ones and broken ones, for the tests.

`tiny_llama()` is a description of a one-layer model that llama.cpp loads; tests change one thing in
it and call `build`.
"""

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

from helpers import tiny

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
_CODES = dict(zip(range(13), "BbHhIif?  Qqd", strict=True))
TYPE_F32 = 0


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: Any) -> bytes:
    """A metadata value without its type; an array is (element type, list)."""
    if kind == STR:
        return string(content)
    if kind == ARR:
        of, items = content
        return struct.pack("<IQ", of, len(items)) + b"".join(value(of, item) for item in items)
    return struct.pack("<" + _CODES[kind], content)


@dataclass
class Tensor:
    """One tensor; fields left None are computed."""

    name: str
    shape: tuple[int, ...]
    data: bytes = b""
    type: int = TYPE_F32
    offset: int | None = None


@dataclass
class Gguf:
    """A GGUF file in pieces; `n_kv` and `n_tensors` replace the true counts when given."""

    kv: dict[str, tuple[int, Any]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    n_kv: int | None = None
    n_tensors: int | None = None
    alignment: int = 32
    extra_kv: bytes = b""

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def build(self) -> bytes:
        n_kv = len(self.kv) if self.n_kv is None else self.n_kv
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        out = [self.magic, struct.pack("<IQQ", self.version, n_tensors, n_kv)]
        out += [string(k) + struct.pack("<I", t) + value(t, v) for k, (t, v) in self.kv.items()]
        out.append(self.extra_kv)
        data, end = [], 0
        for t in self.tensors:
            offset = end if t.offset is None else t.offset
            out.append(string(t.name) + struct.pack("<I", len(t.shape)))
            out.append(struct.pack(f"<{len(t.shape)}Q", *t.shape))
            out.append(struct.pack("<IQ", t.type, offset))
            data += [t.data, b"\0" * (-len(t.data) % self.alignment)]
            end += len(data[-2]) + len(data[-1])
        header = b"".join(out)
        return b"".join([header, b"\0" * (-len(header) % self.alignment), *data])

    def write(self, path: Path) -> Path:
        path.write_bytes(self.build())
        return path


def says(key: str, kind: int, content: Any) -> Callable[[Gguf], None]:
    """A change: the file says this of itself."""
    return lambda made: made.kv.update({key: (kind, content)})


def read(path: Path) -> Gguf:
    """A sound file of ours, in pieces."""
    reader, made = gguf.GGUFReader(path), Gguf()
    for key, field_ in reader.fields.items():
        kind, *of = field_.types
        value_ = (of[-1], field_.contents()) if kind == ARR else field_.contents()
        if not key.startswith("GGUF."):
            made.kv[key] = kind, value_
    for each in reader.tensors:
        shape = tuple(map(int, each.shape))
        made.tensors.append(Tensor(each.name, shape, each.data.tobytes(), each.tensor_type))
    return made


def floats(shape: tuple[int, ...], seed: int, scale: float = 0.1) -> bytes:
    rng, n = random.Random(seed), math.prod(shape)  # noqa: S311 - weights, not secrets
    return struct.pack(f"<{n}f", *(rng.gauss(0, scale) for _ in range(n)))


def tiny_llama(layers: int = 1, width: int = 32) -> Gguf:
    """A random llama model with 2 heads and a 263-token byte vocabulary that llama.cpp loads."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + ["a", "b", "c", "d"]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 4
    kv: dict[str, tuple[int, Any]] = {
        "general.architecture": (STR, "llama"), "llama.block_count": (U32, layers),
        "llama.context_length": (U32, 256), "llama.embedding_length": (U32, width),
        "llama.feed_forward_length": (U32, width), "llama.attention.head_count": (U32, 2),
        "llama.attention.head_count_kv": (U32, 2), "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "tokenizer.ggml.model": (STR, "llama"), "tokenizer.ggml.tokens": (ARR, (STR, tokens)),
        "tokenizer.ggml.scores": (ARR, (F32, [0.0] * len(tokens))), "tokenizer.ggml.token_type": (ARR, (I32, kinds)),
        "tokenizer.ggml.bos_token_id": (U32, 1), "tokenizer.ggml.eos_token_id": (U32, 2),
    }  # fmt: skip
    square = (width, width)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (width, len(tokens))}
    shapes["output_norm.weight"] = (width,)
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            shapes[f"blk.{i}.{name}.weight"] = square
        shapes[f"blk.{i}.attn_norm.weight"] = shapes[f"blk.{i}.ffn_norm.weight"] = (width,)
    tensors = [Tensor(n, s, floats(s, seed)) for seed, (n, s) in enumerate(shapes.items())]
    return Gguf(kv, tensors)


def adapter(*names: str, a: tuple[int, ...] = (32, 4), b: tuple[int, ...] = (4, 32)) -> Gguf:
    """A LoRA adapter for these matrices of the tiny llama's layer, whose halves have these shapes."""
    made = Gguf({"general.type": (STR, "adapter"), "adapter.type": (STR, "lora")})
    made.kv |= {"general.architecture": (STR, "llama"), "adapter.lora.alpha": (F32, 1.0)}
    for seed, name in enumerate(names or ["attn_q"]):
        for end, shape in {"a": a, "b": b}.items():
            whole = f"blk.0.{name}.weight.lora_{end}"
            made.tensors.append(Tensor(whole, shape, floats(shape, seed)))
    return made


def split(folder: Path, count: int = 3) -> list[Path]:
    """Writes a model in parts: everything but the tensors is in the first."""
    whole = tiny_llama()
    return in_parts(whole, folder, [whole.tensors[i::count] for i in range(count)])


def in_parts(whole: Gguf, folder: Path, shares: list[list[Tensor]]) -> list[Path]:
    """Writes a model in as many parts as there are shares of its tensors; one that is empty makes a part without tensors."""
    paths, count = [], len(shares)
    for i, share in enumerate(shares):
        kv = dict(whole.kv) if i == 0 else {}
        kv |= {"split.no": (U16, i), "split.count": (U16, count)}
        kv["split.tensors.count"] = I32, len(whole.tensors)
        name = f"big-{i + 1:05d}-of-{count:05d}.gguf"
        paths.append(Gguf(kv, share).write(folder / name))
    return paths


def tiny_words(pre: str) -> Gguf:
    """A vocabulary of byte pairs alone, as GPT-2 spells them, without weights; `pre` names the expressions for its words."""
    pairs = [(a, b) for a in "aeio17-\u0120" for b in "nrst17-\u0120"]
    tokens = [*tiny.byte_tokens("gpt2"), *(a + b for a, b in pairs), "<s>", "</s>"]
    n, merges = len(tokens), [f"{a} {b}" for a, b in pairs]
    told = {
        "model": (STR, "gpt2"), "pre": (STR, pre), "tokens": (ARR, (STR, tokens)),
        "token_type": (ARR, (I32, [1] * (n - 2) + [3, 3])), "merges": (ARR, (STR, merges)),
        "bos_token_id": (U32, n - 2), "eos_token_id": (U32, n - 1),
    }  # fmt: skip
    kv: dict[str, Any] = {f"tokenizer.ggml.{key}": value for key, value in told.items()}
    return Gguf({"general.architecture": (STR, "llama"), **kv})
