"""Files that once ended the process or hung it, each by name: one change to the header of a model that loads."""

from __future__ import annotations

import math
from collections.abc import Callable

from helpers.make_gguf import ARR, F32, STR, U32, Gguf, says, tiny_llama

EPS = "llama.attention.layer_norm_rms_epsilon"


def _words(change: Callable[[list[str]], list[str]]) -> Callable[[Gguf], None]:
    def apply(made: Gguf) -> None:
        _, (of, words) = made.kv["tokenizer.ggml.tokens"]
        made.kv["tokenizer.ggml.tokens"] = (ARR, (of, change(list(words))))

    return apply


def _experts(used: int, of: int) -> Callable[[Gguf], None]:
    def apply(made: Gguf) -> None:
        made.kv["llama.expert_count"] = (U32, of)
        made.kv["llama.expert_used_count"] = (U32, used)

    return apply


def _rope(kind: str, factor: float) -> Callable[[Gguf], None]:
    def apply(made: Gguf) -> None:
        made.kv["llama.rope.scaling.type"] = (STR, kind)
        made.kv["llama.rope.scaling.factor"] = (F32, factor)

    return apply


def _rwkv(made: Gguf) -> None:
    """Words of a trie that begin with a byte which is no word."""
    _words(lambda words: [f"w{i}" for i in range(len(words))])(made)
    made.kv["tokenizer.ggml.model"] = (STR, "rwkv")


NUMBERS = (2274, 2977)
"""Mutants that did: a tokenizer without end, and a text whose first space could not be spelled."""

SEEDS: dict[str, Callable[[Gguf], None]] = {
    "an-empty-token": _words(lambda words: [*words[:-1], ""]),
    "nul-in-a-token": _words(lambda words: [*words[:-1], "a\0b"]),
    "no-byte-tokens": _words(lambda words: [f"w{i}" for i in range(len(words))]),
    "eps-nan": says(EPS, F32, math.nan),
    "eps-minus-infinity": says(EPS, F32, -math.inf),
    "eps-minus-one": says(EPS, F32, -1.0),
    "one-expert-too-many": _experts(3, 2),
    "expert-counts-without-end": _experts(1, 2**31),
    "rope-factor-0": _rope("linear", 0.0),
    "rope-factor-nan": _rope("yarn", math.nan),
    "rope-scaling-unknown": _rope("none\0", 1.0),
    "tokenizer-bert": says("tokenizer.ggml.model", STR, "bert"),
    "tokenizer-without-end": _rwkv,
}


def seed(name: str) -> bytes:
    made = tiny_llama()
    SEEDS[name](made)
    return made.build()
