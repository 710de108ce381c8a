"""Damaged files from a seed: one to four changes to what loads, most of them lawful GGUF.

Heads, models with a head, adapters and tokenizers with a table of characters are damaged as targets are, and in what they
alone have. Overrides are damaged the other way round: the file is sound, and what replaces its values is not.
"""

from __future__ import annotations

import copy
import json
import math
import random
import struct
from collections.abc import Callable
from typing import Any

from fuzz import bases
from helpers.make_gguf import ARR, BOOL, F32, I32, STR, U8, U32, U64, Gguf, Tensor, tiny_llama

NUMBERS = [0, 1, 2, 3, 7, 31, 512, 513, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
FLOATS = [0.0, -1.0, 1e-5, 1e30, float("inf"), float("-inf"), float("nan")]
WORDS = [
    "", "llama", "bert", "gpt2", "t5", "rwkv", "none", "plamo2", "no_vocab", "\0", "é", "x" * 70000, "../x",
]  # fmt: skip
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
OWN = [
    "target_hidden_size", "embedding_length", "embedding_length_out", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "block_count", "context_length", "target_layers",
    "norm_before_residual", "norm_before_fc", "nextn_predict_layers", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
    "ssm.time_step_rank", "ssm.group_count", "full_attention_interval", "rope.dimension_sections", "attention.scale",
    "logit_scale", "residual_scale", "embedding_scale", "final_logit_softcapping", "attention.clamp_kqv",
    "attention.max_alibi_bias", "expert_feed_forward_length", "expert_weights_scale", "draft_vocab_size",
]  # fmt: skip
"""Keys that heads and hybrids have beyond a llama's."""

ARCHS = [
    "llama", "gemma3", "mamba", "rwkv6", "t5", "bert", "qwen3moe", "deepseek2", "plamo2", "granite", "", "gpt2",
]  # fmt: skip


def mutant(seed: int, kind: str = "target") -> bytes:
    rng = random.Random(seed)  # noqa: S311 - damage, not secrets
    if kind == "words":
        return bases.words(rng).build()
    if kind == "override":
        return _overrides(rng)
    made = bases.sound(kind)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        rng.choice(CHANGES[kind])(made, rng)
    raw = _build(made, kind)
    if rng.random() < 0.15:
        raw = _flip(raw, rng)
    if rng.random() < 0.05:
        raw = raw[: rng.randrange(len(raw))]
    return raw


def _build(made: Gguf, kind: str) -> bytes:
    try:
        return made.build()
    except Exception:  # noqa: BLE001 - a change may not fit its type, then the file is the good one
        return bases.sound(kind).build()


def _flip(raw: bytes, rng: random.Random) -> bytes:
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
    keys = [key for key, (kind, _) in made.kv.items() if kind != ARR]
    if not keys:
        return
    key = rng.choice(keys)
    kind, _ = made.kv[key]
    kinds = {U32: NUMBERS, F32: FLOATS, STR: WORDS}
    if kind in kinds and rng.random() < 0.8:
        made.kv[key] = (kind, rng.choice(kinds[kind]))
    else:
        made.kv[key] = _scalar(rng)


def _add_key(prefix: str = "llama") -> Callable[[Gguf, random.Random], None]:
    """Adds a key, of those that heads and hybrids have as well where the prefix is theirs."""
    own = OWN if prefix != "llama" else ()
    keys = [*(key.replace("llama.", f"{prefix}.") for key in KEYS), *(f"{prefix}.{k}" for k in own)]

    def add(made: Gguf, rng: random.Random) -> None:
        made.kv[rng.choice(keys)] = _scalar(rng)

    return add


def _drop_key(made: Gguf, rng: random.Random) -> None:
    if made.kv:
        made.kv.pop(rng.choice(list(made.kv)))


def _change_arch(made: Gguf, rng: random.Random) -> None:
    name = rng.choice(ARCHS)
    made.kv["general.architecture"] = (STR, name)
    if rng.random() < 0.7:
        made.kv = {key.replace("llama.", f"{name}."): value for key, value in made.kv.items()}


def _change_words(made: Gguf, rng: random.Random) -> None:
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
    n = len(made.kv.get("tokenizer.ggml.tokens", (ARR, (STR, [])))[1][1])
    n = rng.choice([n, n, n, 0, 100, 1000])
    of, values = (I32, [0, 1, 2, 3, 4, 5, 6, 99, -1]) if "type" in key else (F32, FLOATS)
    made.kv[key] = (ARR, (of, [rng.choice(values) for _ in range(n)]))


def _change_tensor(made: Gguf, rng: random.Random) -> None:
    if not made.tensors:
        return
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
    key = rng.choice(["tokenizer.chat_template", "tokenizer.chat_template.tool_use"])
    made.kv[key] = (STR, rng.choice(TEMPLATES))


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


def _change_array(made: Gguf, rng: random.Random) -> None:
    keys = [key for key, (kind, _) in made.kv.items() if kind == ARR]
    if not keys:
        return
    key = rng.choice(keys)
    of, values = made.kv[key][1]
    way = rng.randrange(5)
    if way == 0:
        values = values[: rng.randrange(len(values) + 1)]
    elif way == 1:
        values = [*values, *values]
    elif way == 2:
        of, values = STR, [rng.choice(WORDS[:9]) for _ in values]
    elif way == 3:
        of, values = F32, [rng.choice(FLOATS) for _ in values]
    else:
        of, values = I32, [rng.choice([0, 1, 2, 3, 4, 9, -1, 2**31 - 1]) for _ in values]
    made.kv[key] = (ARR, (of, values))


def _change_shape(made: Gguf, rng: random.Random) -> None:
    """A shape that the data fits or is made for: what the header says is true, and the graph is another."""
    tensor = rng.choice(made.tensors) if made.tensors else Tensor("", (1,))
    shape = list(tensor.shape)
    way = rng.randrange(4)
    if way == 0:
        shape.reverse()
    elif way == 1:
        shape = [math.prod(shape)]
    elif shape:
        shape[rng.randrange(len(shape))] = rng.choice([1, 2, 4, 8, 16, 31, 33, 64, 128])
    size = {27: 8}.get(tensor.type, 4) * math.prod(shape)
    tensor.data = (tensor.data * (size // max(1, len(tensor.data)) + 1))[:size]
    tensor.shape = tuple(shape)


def _change_weights(made: Gguf, rng: random.Random) -> None:
    tensor = rng.choice(made.tensors) if made.tensors else Tensor("", (1,))
    width, form, values = (8, "<q", [-1, 2**40, 31, 32]) if tensor.type == 27 else (4, "<f", FLOATS)
    number = struct.pack(form, rng.choice(values))
    many = len(tensor.data) // width
    if not many:
        return
    if rng.random() < 0.5:
        tensor.data = number * many
    else:
        at = width * rng.randrange(many)
        tensor.data = tensor.data[:at] + number + tensor.data[at + width :]


def _change_map(made: Gguf, rng: random.Random) -> None:
    """The table of characters: other bits, cut, another size, another type."""
    key = "tokenizer.ggml.precompiled_charsmap"
    if key not in made.kv or not isinstance(made.kv[key][1], tuple):
        return
    of, values = made.kv[key][1]
    values = list(values)
    way = rng.randrange(6)
    if way == 0:
        values = values[: rng.randrange(len(values) + 1)]
    elif way == 1 and len(values) > 4:
        size = rng.choice([0, 1, 3, 4, 5, 8192, 8196, 8197, 8198, 2**31, 2**32 - 1, 2**32 - 4])
        values[:4] = struct.pack("<I", size)
    elif way == 2:
        of, values = I32, values[:100]
    elif way == 3:
        while values and values[-1] == 0:
            values.pop()
    else:
        used = [i for i, byte in enumerate(values) if byte] or [0]
        for _ in range(rng.randrange(1, 6)):
            at = min(max(0, rng.choice(used) + rng.randrange(-4, 5)), len(values) - 1)
            if values:
                values[at] = rng.randrange(256)
    made.kv[key] = (ARR, (of, values))


def _overrides(rng: random.Random) -> bytes:
    """JSON of header values that replace a sound file's: one to four."""
    found = {}
    own = list(tiny_llama().kv)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        key = rng.choice(
            [rng.choice(own), rng.choice(KEYS), rng.choice(KEYS), f"llama.{rng.choice(OWN)}"]
        )
        kind, value = _scalar(rng)
        found[key] = (
            value.partition("\0")[0] if kind == STR else bool(value) if kind == BOOL else value
        )
    return json.dumps(found).encode()


_Change = Callable[[Gguf, random.Random], None]

_ANY: list[_Change] = [
    _change_value, _change_value, _change_value, *[_add_key()] * 2, _drop_key, _change_arch, _change_words,
    _change_words, _change_kinds, _change_tensor, _change_tensor, _add_template, _change_counts,
]  # fmt: skip
_BESIDE: list[_Change] = [
    _change_value, _change_value, _change_value, _drop_key, _change_words, _change_array, _change_array, _change_tensor,
    _change_shape, _change_shape, _change_weights, _change_counts,
]  # fmt: skip

CHANGES: dict[str, list[_Change]] = {
    "target": _ANY,
    "head": [*_BESIDE, *[_add_key("eagle3")] * 3],
    "mtp": [*_BESIDE, *[_add_key("qwen35")] * 3],
    "lora": [*_BESIDE, _add_key("adapter"), _change_shape, _change_shape, _change_tensor],
    "charsmap": [*[_change_map] * 8, _change_kinds, _change_words, _change_array, _add_key()],
}
KINDS = (*CHANGES, "override", "words")
