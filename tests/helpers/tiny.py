"""Tiny random GGUFs: a few thousand weights, 32 tokens, made in milliseconds.

Ids 0..2 are `<unk>`, `<s>` and `</s>`; the rest are one letter each, so `tokenize(b"abc")` is a byte-for-letter affair. Their
rows of the output matrix are zero, so they are hardly ever an argmax; a test that wants an end names another id.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LETTERS = "\n▁abcdefghijklmnopqrstuvwxyz."
TOKENS = ["<unk>", "<s>", "</s>", *LETTERS]
ASCII = [*TOKENS[:3], "\n", "▁", *map(chr, range(33, 127))]
N_VOCAB = len(TOKENS)
EOS = 2
A = TOKENS.index("a")
N_EMBD, N_HEAD, N_FF = 32, 2, 64
LOGIT_SCALE = 3.0
OTHER = [int(n) for n in os.environ.get("PYSPEC_TEST_WEIGHTS", "").split()]
"""A number makes other random models: where rounding decides, it does not in the same test of all of them; a fault stays."""

F32: dict[str, Any] = {"flash_attn": False, "type_k": 0, "type_v": 0}
"""For exact texts: those of a random model are full of near-ties, which half precision decides by the order of rows and cells."""

USER_DEFINED = gguf.TokenType.USER_DEFINED


class Weights:
    """Named random tensors; `noise` blends in other ones, so that a model is a worse copy of another."""

    def __init__(self, seed: int, noise: float = 0.0, noise_seed: int = 1) -> None:
        self._rng, self._noise = np.random.default_rng([seed, *OTHER]), noise
        self._other = np.random.default_rng(noise_seed)

    def matrix(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Gaussian, scaled so that a unit-variance input stays one; shape as numpy has it (rows first)."""
        own, other = self._rng.standard_normal(shape), self._other.standard_normal(shape)
        mixed = np.sqrt(1.0 - self._noise**2) * own + self._noise * other
        return (scale * mixed / np.sqrt(shape[-1])).astype(np.float32)


def _vocabulary(
    writer: gguf.GGUFWriter, tokens: list[str], eos: int, marks: Sequence[str] = (), bos: int | None = 1,
    adds: tuple[bool, bool] = (False, False),
) -> None:  # fmt: skip
    all_tokens, kind = [*tokens, *marks], gguf.TokenType
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.NORMAL] * (len(tokens) - 3)]
    kinds += [kind.CONTROL] * len(marks)
    say(writer, tokenizer_model="llama", token_list=all_tokens, token_types=kinds)
    say(writer, token_scores=[0.0] * len(all_tokens))
    if bos is not None:
        writer.add_bos_token_id(bos)
    say(writer, eos_token_id=eos, unk_token_id=0, add_space_prefix=False)
    say(writer, add_bos_token=adds[0], add_eos_token=adds[1])


def _ends(weights: Weights, n_vocab: int, scale: float) -> Iterator[tuple[str, np.ndarray]]:
    yield "token_embd.weight", weights.matrix(n_vocab, N_EMBD, scale=np.sqrt(N_EMBD))
    output = weights.matrix(n_vocab, N_EMBD, scale=scale)
    output[: EOS + 1] = 0.0
    yield "output.weight", output
    yield "output_norm.weight", np.ones(N_EMBD, np.float32)


SQUARE, TALL, FLAT = (N_EMBD, N_EMBD), (N_FF, N_EMBD), (N_EMBD, N_FF)
Tensors = Iterator[tuple[str, np.ndarray]]


def _matrices(weights: Weights, prefix: str, **shapes: tuple[int, ...]) -> Tensors:
    for name, shape in shapes.items():
        yield f"{prefix}.{name}.weight", weights.matrix(*shape)


def _ones(prefix: str, names: str, size: int = N_EMBD) -> Tensors:
    for name in names.split():
        yield f"{prefix}.{name}.weight", np.ones(size, np.float32)


def _attention(weights: Weights, prefix: str) -> Tensors:
    yield from _matrices(
        weights, prefix, attn_q=SQUARE, attn_k=SQUARE, attn_v=SQUARE, attn_output=SQUARE,
        ffn_gate=TALL, ffn_up=TALL, ffn_down=FLAT,
    )  # fmt: skip
    yield from _ones(prefix, "attn_norm ffn_norm")


def _mixture(weights: Weights, prefix: str, n_experts: int) -> Tensors:
    for name, tensor in _attention(weights, prefix):
        if ".ffn_" not in name or "norm" in name:
            yield name, tensor
    experts = {f"ffn_{n}_exps": (n_experts, *s) for n, s in (("gate", TALL), ("up", TALL), ("down", FLAT))}  # fmt: skip
    yield from _matrices(weights, prefix, ffn_gate_inp=(n_experts, N_EMBD), **experts)


def _mamba(weights: Weights, prefix: str) -> Tensors:
    inner, state, rank = 2 * N_EMBD, 8, 4
    yield from _ones(prefix, "attn_norm")
    yield from _matrices(weights, prefix, ssm_in=(2 * inner, N_EMBD), ssm_conv1d=(inner, 4))
    yield f"{prefix}.ssm_conv1d.bias", np.zeros(inner, np.float32)
    yield from _matrices(weights, prefix, ssm_x=(rank + 2 * state, inner), ssm_dt=(inner, rank))
    yield f"{prefix}.ssm_dt.bias", np.zeros(inner, np.float32)
    yield f"{prefix}.ssm_a", -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
    yield f"{prefix}.ssm_d", np.ones(inner, np.float32)
    yield from _matrices(weights, prefix, ssm_out=(N_EMBD, inner))


def _sliding(weights: Weights, prefix: str) -> Tensors:
    yield from _attention(weights, prefix)
    yield from _ones(prefix, "attn_q_norm attn_k_norm", N_EMBD // N_HEAD)
    yield from _ones(prefix, "post_attention_norm post_ffw_norm")


def _short_convolution(weights: Weights, prefix: str) -> Tensors:
    """LFM2: every other layer is a convolution over three tokens; its state is all that it remembers."""
    convolution = int(prefix.removeprefix("blk.")) % 2 == 0
    for name, tensor in _attention(weights, prefix):
        if not (convolution and "attn_" in name and "norm" not in name):
            yield name, tensor
    if convolution:
        shapes = {"conv": (N_EMBD, 3), "in_proj": (3 * N_EMBD, N_EMBD), "out_proj": SQUARE}
        yield from _matrices(weights, f"{prefix}.shortconv", **shapes)
    else:
        yield from _ones(prefix, "attn_q_norm attn_k_norm", N_EMBD // N_HEAD)


def _gated_attention(weights: Weights, prefix: str) -> Tensors:
    yield from _matrices(
        weights, prefix, attn_q=(2 * N_EMBD, N_EMBD), attn_k=SQUARE, attn_v=SQUARE, attn_output=SQUARE
    )  # fmt: skip
    yield from _ones(prefix, "attn_q_norm attn_k_norm", N_EMBD // N_HEAD)


def _delta_net(weights: Weights, prefix: str) -> Tensors:
    wide, narrow = (3 * N_EMBD, N_EMBD), (N_HEAD, N_EMBD)
    yield from _matrices(
        weights, prefix, attn_qkv=wide, attn_gate=SQUARE, ssm_conv1d=(3 * N_EMBD, 4)
    )
    yield f"{prefix}.ssm_dt.bias", np.zeros(N_HEAD, np.float32)
    yield f"{prefix}.ssm_a", -np.ones(N_HEAD, np.float32)
    yield from _matrices(weights, prefix, ssm_beta=narrow, ssm_alpha=narrow)
    yield from _ones(prefix, "ssm_norm", N_EMBD // N_HEAD)
    yield from _matrices(weights, prefix, ssm_out=SQUARE)


def _hybrid(weights: Weights, prefix: str) -> Tensors:
    """Qwen3.5: every other layer is a delta net."""
    delta = int(prefix.removeprefix("blk.")) % 2 == 0
    yield from (_delta_net if delta else _gated_attention)(weights, prefix)
    yield from _ones(prefix, "attn_norm post_attention_norm")
    yield from _matrices(weights, prefix, ffn_gate=TALL, ffn_up=TALL, ffn_down=FLAT)


def _next_token_head(weights: Weights, prefix: str) -> Tensors:
    """Qwen3.5's: a layer of attention over a token and the state before it."""
    for name, tensor in _hybrid(weights, "blk.1"):
        yield name.replace("blk.1", prefix), tensor
    yield from _matrices(weights, f"{prefix}.nextn", eh_proj=(N_EMBD, 2 * N_EMBD))
    yield from _ones(f"{prefix}.nextn", "enorm hnorm shared_head_norm")


_BLOCKS = {
    "llama": _attention, "mixture": _attention, "mamba": _mamba, "gemma3": _sliding, "lfm2": _short_convolution,
    "qwen35": _hybrid,
}  # fmt: skip


def _facts(writer: gguf.GGUFWriter, arch: str, n_layer: int, window: int, n_experts: int) -> None:
    """What only some architectures say of themselves."""
    head = N_EMBD // N_HEAD
    if arch in ("mamba", "qwen35"):
        sizes = (2 * N_EMBD, 8, 4) if arch == "mamba" else (N_EMBD, head, N_HEAD)
        say(writer, ssm_conv_kernel=4, ssm_inner_size=sizes[0], ssm_state_size=sizes[1])
        say(writer, ssm_time_step_rank=sizes[2])
    if arch == "mixture":
        say(writer, expert_count=n_experts, expert_used_count=2)
    if arch in ("gemma3", "qwen35"):
        say(writer, key_length=head, value_length=head)
    if arch == "gemma3":
        writer.add_sliding_window(window)
    if arch == "qwen35":
        writer.add_ssm_group_count(N_HEAD)
        writer.add_array("qwen35.rope.dimension_sections", [3, 3, 2, 0])
        writer.add_uint32("qwen35.full_attention_interval", 2)
    if arch == "lfm2":
        say(writer, shortconv_l_cache=3, head_count_kv=[N_HEAD * (i % 2) for i in range(n_layer)])


_VALUE = gguf.GGUFValueType
_KINDS = {int: _VALUE.INT32, float: _VALUE.FLOAT32, str: _VALUE.STRING}


def say(writer: gguf.GGUFWriter, **facts: Any) -> None:
    """Have a file say these of itself, by the names of gguf's methods for them."""
    for name, fact in facts.items():
        getattr(writer, f"add_{name}")(fact)


def begun(
    path: Path, arch: str, n_layer: int, width: int = N_EMBD, n_ctx: int = 4096
) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, arch)
    n_ff, n_head = (0, 0) if arch == "mamba" else (N_FF, N_HEAD)
    say(writer, context_length=n_ctx, embedding_length=width, block_count=n_layer)
    say(writer, feed_forward_length=n_ff, head_count=n_head, layer_norm_rms_eps=1e-5)
    return writer


def written(writer: gguf.GGUFWriter, path: Path) -> Path:
    """The file, with all that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write(
    path: Path, *, arch: str = "llama", seed: int = 0, noise: float = 0.0, noise_seed: int = 1, eos: int = EOS,
    tokens: list[str] | None = None, n_layer: int = 2, window: int = 16, scale: float = LOGIT_SCALE,
    n_heads: int = 0, trunk: bool = True, marks: Sequence[str] = (), template: str = "", bos: int | None = 1,
    adds: tuple[bool, bool] = (False, False), n_ctx: int = 4096,
    sampling: Mapping[str, float | str] | None = None, n_experts: int = 4,
    fills: Mapping[str, int] | None = None,
) -> Path:  # fmt: skip
    """Write a model of architecture `arch`: llama, mamba (recurrent), gemma3 (sliding window), lfm2 or qwen35 (hybrids).

    Or mixture, which is llama with n_experts, two of which compute a token.
    n_heads: next-token heads (MTP), qwen35 only; without `trunk` they are all that the file has. marks: control tokens behind the
    others. template: the chat template.
    bos: None for no key. adds: whether texts get a BOS and an EOS token. n_ctx: tokens of context that it was trained for.
    noise: 0 for the weights of `seed` alone, 1 for other ones altogether. scale: standard deviation of the logits.
    sampling: what the file suggests, as `general.sampling.NAME`. fills: tokens for filling in, as
    `tokenizer.ggml.fim_NAME_token_id`.
    """
    tokens = tokens or TOKENS
    writer = begun(path, "llama" if arch == "mixture" else arch, n_layer + n_heads, n_ctx=n_ctx)
    if n_heads:
        writer.add_uint32(f"{arch}.nextn_predict_layers", n_heads)
    _facts(writer, arch, n_layer, window, n_experts)
    _vocabulary(writer, tokens, eos, marks, bos, adds)
    for name, value in (sampling or {}).items():
        writer.add_key_value(f"general.sampling.{name}", value, _KINDS[type(value)])
    for name, token in (fills or {}).items():
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)
    if template:
        writer.add_chat_template(template)
    weights = Weights(seed, noise, noise_seed)
    for name, tensor in _ends(weights, len(tokens) + len(marks), scale):
        last = arch == "lfm2" and name == "output_norm.weight"
        writer.add_tensor("token_embd_norm.weight" if last else name, tensor)
    for layer in range(n_layer + n_heads):
        block = _BLOCKS[arch] if layer < n_layer else _next_token_head
        if arch == "mixture":
            block = partial(_mixture, n_experts=n_experts)
        for name, tensor in block(weights, f"blk.{layer}"):
            if trunk or layer >= n_layer:
                writer.add_tensor(name, tensor)
    return written(writer, path)


N_FIRST = 3 + 256 + 2
"""Tokens in front of the marks: three special ones, the bytes, and a space and a pair for merges."""


def mark(n: int) -> int:
    """The id of a vocabulary's n-th mark."""
    return N_FIRST + n


def byte_tokens(model: str) -> list[str]:
    """One token a byte, as BPE vocabularies (gpt2) or SentencePiece's (llama) write them."""
    if model == "llama":
        return [f"<0x{byte:02X}>" for byte in range(256)]
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]


def write_vocabulary(
    path: Path, template: str | None, marks: Sequence[str], *, model: str = "gpt2",
    kind: gguf.TokenType = gguf.TokenType.CONTROL, named: Mapping[str, str] | None = None,
    add_bos: bool = False,
) -> Path:  # fmt: skip
    """Write a file of a vocabulary alone, to be loaded with vocab_only: all bytes, and marks of this kind.

    named: further templates.
    """
    writer = begun(path, "llama", 0, n_ctx=1 << 20)
    pair = "\u2581" if model == "llama" else "zz"
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens(model), pair, "\u2581\u2581", *marks]
    byte = gguf.TokenType.BYTE if model == "llama" else gguf.TokenType.NORMAL
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[byte] * 256]
    kinds += [gguf.TokenType.NORMAL] * 2 + [kind] * len(marks)
    say(writer, tokenizer_model=model, token_list=tokens, token_types=kinds)
    if model == "llama":
        writer.add_token_scores([0.0] * len(tokens))
    else:
        say(writer, tokenizer_pre="llama-bpe", token_merges=["z z"])
    say(writer, bos_token_id=1, eos_token_id=2, unk_token_id=0)
    say(writer, add_bos_token=add_bos, add_space_prefix=False)
    if template is not None:
        writer.add_chat_template(template)
    for name, source in (named or {}).items():
        writer.add_string(f"tokenizer.chat_template.{name}", source)
    return written(writer, path)
