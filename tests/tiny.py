"""Tiny random GGUFs: a few thousand weights, 32 tokens, made in milliseconds.

Ids 0..2 are `<unk>`, `<s>` and `</s>`; the rest are one letter each, so `tokenize(b"abc")` is a byte-for-letter affair. Their
rows of the output matrix are zero, so they are hardly ever an argmax; a test that wants an end names another id.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


class Weights:
    """Named random tensors; `noise` blends in other ones, so that a model is a worse copy of another."""

    def __init__(self, seed: int, noise: float = 0.0, noise_seed: int = 1) -> None:
        self._rng, self._noise = np.random.default_rng(seed), noise
        self._other = np.random.default_rng(noise_seed)

    def matrix(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Gaussian, scaled so that a unit-variance input stays one; shape as numpy has it (rows first)."""
        own, other = self._rng.standard_normal(shape), self._other.standard_normal(shape)
        mixed = np.sqrt(1.0 - self._noise**2) * own + self._noise * other
        return (scale * mixed / np.sqrt(shape[-1])).astype(np.float32)


def _vocabulary(writer: gguf.GGUFWriter, tokens: list[str], eos: int) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(eos)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def _ends(weights: Weights, n_vocab: int, scale: float) -> Iterator[tuple[str, np.ndarray]]:
    yield "token_embd.weight", weights.matrix(n_vocab, N_EMBD, scale=np.sqrt(N_EMBD))
    output = weights.matrix(n_vocab, N_EMBD, scale=scale)
    output[: EOS + 1] = 0.0
    yield "output.weight", output
    yield "output_norm.weight", np.ones(N_EMBD, np.float32)


def _attention(weights: Weights, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        yield f"{prefix}.{name}.weight", weights.matrix(N_EMBD, N_EMBD)
    yield f"{prefix}.ffn_gate.weight", weights.matrix(N_FF, N_EMBD)
    yield f"{prefix}.ffn_up.weight", weights.matrix(N_FF, N_EMBD)
    yield f"{prefix}.ffn_down.weight", weights.matrix(N_EMBD, N_FF)
    yield f"{prefix}.attn_norm.weight", np.ones(N_EMBD, np.float32)
    yield f"{prefix}.ffn_norm.weight", np.ones(N_EMBD, np.float32)


def _mamba(weights: Weights, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    inner, state, rank = 2 * N_EMBD, 8, 4
    yield f"{prefix}.attn_norm.weight", np.ones(N_EMBD, np.float32)
    yield f"{prefix}.ssm_in.weight", weights.matrix(2 * inner, N_EMBD)
    yield f"{prefix}.ssm_conv1d.weight", weights.matrix(inner, 4)
    yield f"{prefix}.ssm_conv1d.bias", np.zeros(inner, np.float32)
    yield f"{prefix}.ssm_x.weight", weights.matrix(rank + 2 * state, inner)
    yield f"{prefix}.ssm_dt.weight", weights.matrix(inner, rank)
    yield f"{prefix}.ssm_dt.bias", np.zeros(inner, np.float32)
    yield f"{prefix}.ssm_a", -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
    yield f"{prefix}.ssm_d", np.ones(inner, np.float32)
    yield f"{prefix}.ssm_out.weight", weights.matrix(N_EMBD, inner)


def _sliding(weights: Weights, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    yield from _attention(weights, prefix)
    for name in ("attn_q_norm", "attn_k_norm"):
        yield f"{prefix}.{name}.weight", np.ones(N_EMBD // N_HEAD, np.float32)
    for name in ("post_attention_norm", "post_ffw_norm"):
        yield f"{prefix}.{name}.weight", np.ones(N_EMBD, np.float32)


_BLOCKS = {"llama": _attention, "mamba": _mamba, "gemma3": _sliding}


def write(
    path: Path,
    *,
    arch: str = "llama",
    seed: int = 0,
    noise: float = 0.0,
    noise_seed: int = 1,
    eos: int = EOS,
    tokens: list[str] | None = None,
    n_layer: int = 2,
    window: int = 16,
    scale: float = LOGIT_SCALE,
) -> Path:
    """Write a model of architecture `arch`: llama, mamba (recurrent) or gemma3 (sliding window).

    noise: 0 for the weights of `seed` alone, 1 for other ones altogether. scale: standard deviation of the logits.
    """
    tokens = tokens or TOKENS
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(0 if arch == "mamba" else N_FF)
    writer.add_head_count(0 if arch == "mamba" else N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    if arch == "mamba":
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * N_EMBD)
        writer.add_ssm_state_size(8)
        writer.add_ssm_time_step_rank(4)
    if arch == "gemma3":
        writer.add_key_length(N_EMBD // N_HEAD)
        writer.add_value_length(N_EMBD // N_HEAD)
        writer.add_sliding_window(window)
    _vocabulary(writer, tokens, eos)
    weights = Weights(seed, noise, noise_seed)
    for name, tensor in _ends(weights, len(tokens), scale):
        writer.add_tensor(name, tensor)
    for layer in range(n_layer):
        for name, tensor in _BLOCKS[arch](weights, f"blk.{layer}"):
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
