"""The sound files that are damaged, by kind, and what stands beside them: a target for a head, a model for an adapter."""

from __future__ import annotations

import copy
import random
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from helpers import tiny, tiny_eagle
from helpers.make_gguf import (
    ARR,
    BOOL,
    F32,
    I32,
    STR,
    U8,
    U32,
    Gguf,
    adapter,
    floats,
    read,
    tiny_llama,
    tiny_words,
)

WIDTH = 32
_ADAPTED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_MARKED = 1 << 31
_HAS_LEAF = 1 << 8

_PRE = """
kimi-k2 default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano deepseek-llm
deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt starcoder gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es
jina-v2-de a.x-4.0 mellum modern-bert jais-2 gemma4 granite-embed-multi-311m sarvam-moe jina-v1-en jina-v2-code
roberta-bpe whitespace refact command-r qwen2 deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 olmo dbrx smaug-bpe
poro-chat chatglm-bpe glm4 glm5 viking jais tekken smollm codeshell bloom gpt3-finnish exaone exaone4 exaone-moe
chameleon minerva-7b megrez gpt-4o llama4 kanana2 talkie granite-embed-multi-97m tiny_aya cohere2moe superbpe trillion
granite-docling bailingmoe bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense hy_v4 joyai-llm ufakzeka grok-2 afmoe
laguna minimax-m2 solar-open mellum2
"""

PRE = _PRE.split()
"""Names of the expressions by which llama.cpp splits texts into words: every one that it compares `tokenizer.ggml.pre` with."""

TOKENIZERS = ("gpt2", "llama", "bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace")
"""Kinds of tokenizers, the file's `tokenizer.ggml.model`."""


def charsmap() -> Gguf:
    """A unigram tokenizer that writes "a" as "bc" and "\u00e9" as "e", which a double array says (Kanda 2018)."""
    made = tiny_llama()
    words = ["<pad>", "</s>", "<unk>", *map(chr, range(33, 127)), "\u2581", "\u2581a", "bc"]
    kinds = [3, 3, 2] + [1] * (len(words) - 3)
    made.kv |= {
        "tokenizer.ggml.model": (STR, "t5"),
        "tokenizer.ggml.tokens": (ARR, (STR, words)),
        "tokenizer.ggml.scores": (ARR, (F32, [0.0] * 3 + [-1.0 - i / 8 for i in range(97)])),
        "tokenizer.ggml.token_type": (ARR, (I32, kinds)),
        "tokenizer.ggml.remove_extra_whitespaces": (BOOL, True),
        "tokenizer.ggml.precompiled_charsmap": (ARR, (U8, list(_double_array()))),
        "tokenizer.ggml.eos_token_id": (U32, 1),
        "tokenizer.ggml.unknown_token_id": (U32, 2),
    }
    made.kv.pop("tokenizer.ggml.bos_token_id")
    embeddings = made.tensor("token_embd.weight")
    embeddings.shape = (WIDTH, len(words))
    embeddings.data = floats(embeddings.shape, 1)
    return made


def _double_array() -> bytes:
    """Nodes of 32 bits: the place of children from bit 10 on, whether a text ends there, the byte that leads here."""
    nodes = [0] * 2048
    texts = b"bc\0e\0"

    def leaf(node: int, value: int) -> None:
        base = 512 + 2 * value  # where the value of the text that ends here lies
        nodes[node] |= ((node ^ base) << 10) | _HAS_LEAF
        nodes[base] = _MARKED | value

    root = 256
    nodes[0] = root << 10
    nodes[root ^ ord("a")] = ord("a")
    leaf(root ^ ord("a"), 0)
    first, base = root ^ 0xC3, 1024
    nodes[first] = 0xC3 | ((first ^ base) << 10)
    nodes[base ^ 0xA9] = 0xA9
    leaf(base ^ 0xA9, 3)
    raw = struct.pack(f"<{len(nodes)}I", *nodes)
    return struct.pack("<I", len(raw)) + raw + texts


def words(rng: random.Random) -> Gguf:
    """A tokenizer and a text for it, kept as the file's description: runs of few kinds of characters."""
    made = tiny_words(rng.choice(PRE))
    if rng.random() < 0.3:
        made.kv["tokenizer.ggml.model"] = (STR, rng.choice(TOKENIZERS))
        made.kv["tokenizer.ggml.scores"] = (
            ARR,
            (F32, [0.0] * len(made.kv["tokenizer.ggml.tokens"][1][1])),
        )
    pieces = []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.choice(RUNS)
        pieces.append(kind * rng.choice([1, 3, 17, 1000, 40_000, 100_000 // len(kind)]))
    made.kv["general.description"] = (STR, "".join(pieces))
    return made


RUNS = (
    "a", "A", "7", " ", "-", "\n", "\r", "\t", "\u4e16", "\u0e01", "\u0301", "\U0001f600", "aA", "'s", "a7", " a", "\u00a0",
    "ab cd ", "{}", "\n\n ", "\x00", "\u3042", "<s>", "\ufffd", "\U0010ffff", "_", ".", "\u200d",
)  # fmt: skip


def sound(kind: str) -> Gguf:
    """The file of this kind before it is damaged; the caller's own."""
    return copy.deepcopy(_sound(kind))


@cache
def _sound(kind: str) -> Gguf:
    return BASES[kind]()


def _written(write: Callable[[Path], Path]) -> Gguf:
    with tempfile.TemporaryDirectory() as folder:
        return read(write(Path(folder, "sound.gguf")))


BASES: dict[str, Callable[[], Gguf]] = {
    "target": tiny_llama,
    "head": lambda: _written(lambda path: tiny_eagle.write(path, d2t=[3, 5, 7, 9, 11, 13])),
    "beside_head": lambda: _written(lambda path: tiny.write(path, n_layer=tiny_eagle.N_LAYER)),
    "mtp": lambda: _written(lambda path: tiny.write(path, arch="qwen35", n_heads=1)),
    "lora": lambda: adapter(*_ADAPTED),
    "charsmap": charsmap,
}
