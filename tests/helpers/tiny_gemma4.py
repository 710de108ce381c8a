"""A tiny random Gemma 4, and assistants for it, which look into its KV."""

from pathlib import Path

import gguf
import numpy as np

from helpers import tiny

HEAD = tiny.N_EMBD // tiny.N_HEAD
WIDTH = 16
"""Of an assistant's own layers."""


def _begin(path: Path, arch: str, width: int, windows: list[bool]) -> gguf.GGUFWriter:
    writer = tiny.begun(path, arch, len(windows), width)
    tiny.say(writer, key_length=HEAD, value_length=HEAD, sliding_window=16)
    writer.add_uint32(f"{arch}.attention.key_length_swa", HEAD)
    writer.add_uint32(f"{arch}.attention.value_length_swa", HEAD)
    writer.add_array(f"{arch}.attention.sliding_window_pattern", windows)
    tiny._vocabulary(writer, tiny.TOKENS, tiny.EOS)
    return writer


def _layer(
    writer: gguf.GGUFWriter, weights: tiny.Weights, layer: int, width: int, *, own: bool
) -> None:
    wide = tiny.N_HEAD * HEAD
    shapes = {"attn_q": (wide, width), "attn_output": (width, wide)}
    shapes |= {"attn_k": (wide, width), "attn_v": (wide, width)} if own else {}
    shapes |= {"ffn_gate": (tiny.N_FF, width), "ffn_up": (tiny.N_FF, width)}
    for name, shape in {**shapes, "ffn_down": (width, tiny.N_FF)}.items():
        writer.add_tensor(f"blk.{layer}.{name}.weight", weights.matrix(*shape))
    sizes = dict.fromkeys(["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"], width)
    sizes |= {"attn_q_norm": HEAD, **({"attn_k_norm": HEAD} if own else {})}
    for name, size in sizes.items():
        scaled = 1 + 0.1 * weights.matrix(size, 1)[:, 0]
        writer.add_tensor(f"blk.{layer}.{name}.weight", scaled)
    if not own:
        writer.add_tensor(f"blk.{layer}.layer_output_scale.weight", np.ones(1, np.float32))


def _end(writer: gguf.GGUFWriter, weights: tiny.Weights, width: int, *, head: bool) -> None:
    embeddings = weights.matrix(tiny.N_VOCAB, width, scale=tiny.LOGIT_SCALE)
    embeddings[: tiny.EOS + 1] = 0.0
    writer.add_tensor("token_embd.weight", embeddings)
    if head:  # with tied ones a random model says the last token again
        output = weights.matrix(tiny.N_VOCAB, width, scale=tiny.LOGIT_SCALE)
        output[: tiny.EOS + 1] = 0.0
        writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("rope_freqs.weight", np.ones(HEAD // 2, np.float32))


def write(path: Path, *, seed: int = 0, n_layer: int = 4) -> Path:
    """Write a Gemma 4 whose last layer alone sees all of a text."""
    windows = [layer < n_layer - 1 for layer in range(n_layer)]
    writer, weights = _begin(path, "gemma4", tiny.N_EMBD, windows), tiny.Weights(seed)
    writer.add_uint32("gemma4.embedding_length_per_layer_input", 0)
    for layer in range(n_layer):
        _layer(writer, weights, layer, tiny.N_EMBD, own=True)
    _end(writer, weights, tiny.N_EMBD, head=True)
    return tiny.written(writer, path)


def write_assistant(path: Path, *, seed: int = 3, hidden: int = tiny.N_EMBD) -> Path:
    """Write an assistant of two layers, one for each kind of the target's."""
    arch, weights = "gemma4-assistant", tiny.Weights(seed)
    writer = _begin(path, arch, WIDTH, [True, False])
    writer.add_uint32(f"{arch}.embedding_length_out", hidden)
    writer.add_uint32(f"{arch}.nextn_predict_layers", 2)
    for layer in range(2):
        _layer(writer, weights, layer, WIDTH, own=False)
    writer.add_tensor("nextn.pre_projection.weight", weights.matrix(WIDTH, 2 * hidden))
    writer.add_tensor("nextn.post_projection.weight", weights.matrix(hidden, WIDTH))
    _end(writer, weights, WIDTH, head=False)
    return tiny.written(writer, path)
