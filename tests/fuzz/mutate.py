"""Damaged model files from a seed: one to four changes to the header of a model that loads, most of them lawful GGUF."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from store.make_gguf import ARR, BOOL, F32, I32, STR, U8, U32, U64, Gguf, tiny_llama

NUMBERS = [0, 1, 2, 3, 7, 31, 512, 513, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
FLOATS = [0.0, -1.0, 1e-5, 1e30, float("inf"), float("-inf"), float("nan")]
WORDS = [
    "",
    "llama",
    "bert",
    "gpt2",
    "t5",
    "rwkv",
    "none",
    "plamo2",
    "no_vocab",
    "\0",
    "é",
    "x" * 70000,
    "../x",
]
TEMPLATES = [
    "{{ 'a'*10**9 }}", "{% for %}", "{{" + "(" * 3000 + ")" * 3000 + "}}", "{{ messages[0]['content'] }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "\ufffd\0<|im_start|>",
]  # fmt: skip
KEYS = [
    "llama.expert_count", "llama.expert_used_count", "llama.rope.dimension_count", "llama.rope.freq_base",
    "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.attention.key_length",
    "llama.attention.value_length", "llama.attention.sliding_window", "llama.attention.causal", "llama.pooling_type",
    "llama.vocab_size", "llama.attention.layer_norm_epsilon", "llama.leading_dense_block_count",
    "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.pre", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.merges", "general.alignment", "general.file_type", "split.count",
    "split.no", "general.name",
]  # fmt: skip
ARCHS = [
    "llama",
    "gemma3",
    "mamba",
    "rwkv6",
    "t5",
    "bert",
    "qwen3moe",
    "deepseek2",
    "plamo2",
    "granite",
    "",
    "gpt2",
]


def mutant(seed: int) -> bytes:
    """The file of a seed; always the same."""
    rng = random.Random(seed)  # noqa: S311 - damage, not secrets
    made = tiny_llama()
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        rng.choice(CHANGES)(made, rng)
    raw = _build(made)
    if rng.random() < 0.15:
        raw = _flip(raw, rng)
    if rng.random() < 0.05:
        raw = raw[: rng.randrange(len(raw))]
    return raw


def _build(made: Gguf) -> bytes:
    try:
        return made.build()
    except Exception:  # noqa: BLE001 - a change may not fit its type, then the file is the good one
        return tiny_llama().build()


def _flip(raw: bytes, rng: random.Random) -> bytes:
    """Some bytes of the header, which the text of the vocabulary ends, become others."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        data[rng.randrange(min(len(data), 12_000))] = rng.randrange(256)
    return bytes(data)


def _scalar(rng: random.Random) -> tuple[int, Any]:
    kind = rng.choice([U32, U32, U64, I32, F32, BOOL, STR, U8])
    if kind == STR:
        return kind, rng.choice(WORDS)
    if kind == F32:
        return kind, rng.choice(FLOATS)
    limits = {BOOL: 2, U8: 256, I32: 2**31}
    return kind, rng.choice(NUMBERS) % limits.get(kind, 2**32)


def _change_value(made: Gguf, rng: random.Random) -> None:
    key = rng.choice([key for key, (kind, _) in made.kv.items() if kind != ARR])
    kind, _ = made.kv[key]
    kinds = {U32: NUMBERS, F32: FLOATS, STR: WORDS}
    if kind in kinds and rng.random() < 0.8:
        made.kv[key] = (kind, rng.choice(kinds[kind]))
    else:
        made.kv[key] = _scalar(rng)


def _add_key(made: Gguf, rng: random.Random) -> None:
    made.kv[rng.choice(KEYS)] = _scalar(rng)


def _drop_key(made: Gguf, rng: random.Random) -> None:
    made.kv.pop(rng.choice(list(made.kv)))


def _change_arch(made: Gguf, rng: random.Random) -> None:
    name = rng.choice(ARCHS)
    made.kv["general.architecture"] = (STR, name)
    if rng.random() < 0.7:
        made.kv = {key.replace("llama.", f"{name}."): value for key, value in made.kv.items()}


def _change_words(made: Gguf, rng: random.Random) -> None:
    """Words of the vocabulary: doubled, emptied, with NUL, not UTF-8, shortened, or all of them gone."""
    kind, (of, words) = made.kv.get("tokenizer.ggml.tokens", (ARR, (STR, ["a"])))
    words = copy.copy(words)
    way = rng.randrange(7)
    at = rng.randrange(len(words) or 1)
    if way == 0 and words:
        words[at] = rng.choice(words)
    elif way == 1:
        words = [rng.choice(["", "\0", "a\0b", word]) for word in words]
    elif way == 2:
        words = [""] * len(words)
    elif way == 3:
        words = words[: rng.randrange(len(words) + 1)]
    elif way == 4:  # no byte tokens
        words = [f"w{i}" if str(word).startswith("<0x") else word for i, word in enumerate(words)]
    elif way == 5 and words:
        words[at] = b"\xff\xfe" if of == STR else 1
    else:
        words = [f"<0x{i:02X}>" for i in range(len(words))]
    made.kv["tokenizer.ggml.tokens"] = (kind, (of, words))


def _change_kinds(made: Gguf, rng: random.Random) -> None:
    key = rng.choice(["tokenizer.ggml.token_type", "tokenizer.ggml.scores"])
    n = rng.choice([263, 263, 263, 0, 100, 1000])
    of, values = (I32, [0, 1, 2, 3, 4, 5, 6, 99, -1]) if "type" in key else (F32, FLOATS)
    made.kv[key] = (ARR, (of, [rng.choice(values) for _ in range(n)]))


def _change_tensor(made: Gguf, rng: random.Random) -> None:
    tensor = rng.choice(made.tensors)
    way = rng.randrange(6)
    if way == 0:
        tensor.name = rng.choice(
            [*WORDS, "blk.0.attn_q.weight", "blk.7.attn_q.weight", "rope_freqs.weight"]
        )
    elif way == 1:
        tensor.shape = tuple(
            rng.choice([0, 1, 31, 32, 33, 2**32, 2**63]) for _ in range(rng.randrange(6))
        )
    elif way == 2:
        tensor.type = rng.choice([0, 1, 2, 3, 8, 12, 14, 16, 30, 39, 41, 99, 2**31])
    elif way == 3:
        tensor.offset = rng.choice([0, 1, 32, 2**31, 2**63, 2**64 - 32])
    elif way == 4:
        made.tensors.remove(tensor)
    else:
        tensor.shape = tensor.shape[::-1]


def _add_template(made: Gguf, rng: random.Random) -> None:
    made.kv[rng.choice(["tokenizer.chat_template", "tokenizer.chat_template.tool_use"])] = (
        STR,
        rng.choice(TEMPLATES),
    )


def _change_counts(made: Gguf, rng: random.Random) -> None:
    way = rng.randrange(4)
    if way == 0:
        made.n_kv = rng.choice([0, 1, 2**20, 2**63])
    elif way == 1:
        made.n_tensors = rng.choice([0, 1, 2**20, 2**63])
    elif way == 2:
        made.version = rng.choice([0, 1, 2, 3, 99, 3 << 24])
    else:
        made.magic = rng.choice([b"GGUF", b"GGML", b"\0\0\0\0"])


CHANGES: list[Callable[[Gguf, random.Random], None]] = [
    _change_value, _change_value, _change_value, _add_key, _add_key, _drop_key, _change_arch, _change_words,
    _change_words, _change_kinds, _change_tensor, _change_tensor, _add_template, _change_counts,
]  # fmt: skip
