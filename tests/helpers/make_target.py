"""A random llama-architecture GGUF: three layers, byte tokens, a chat template; for the recipe's tests."""

from pathlib import Path

import gguf
import numpy as np

from helpers import tiny

WIDTH, LAYERS, HEADS, KV, HEAD, FF = 64, 3, 4, 2, 16, 96
TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_target(path: Path, architecture: str = "llama", seed: int = 0) -> Path:
    """Write a random target; `architecture` may lie, for tests of refusals."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *tiny.byte_tokens("gpt2"), "he", "ll"]
    tokens += [f"<unused{i}>" for i in range(320 - len(tokens))]
    kinds = [3, 3, 3] + [1] * 258 + [5] * (len(tokens) - 261)
    writer = gguf.GGUFWriter(path, architecture)
    tiny.say(
        writer, context_length=512, embedding_length=WIDTH, block_count=LAYERS, feed_forward_length=FF, head_count=HEADS,
        head_count_kv=KV, rope_dimension_count=HEAD, rope_freq_base=10000.0, layer_norm_rms_eps=1e-5,
        vocab_size=len(tokens), tokenizer_model="gpt2", tokenizer_pre="smollm", token_list=tokens, token_types=kinds,
        token_merges=["h e", "l l"], bos_token_id=1, eos_token_id=2, add_bos_token=False, chat_template=TEMPLATE,
    )  # fmt: skip
    for name, shape in tensor_shapes(len(tokens)).items():
        writer.add_tensor(name, _values(name, shape, seed))
    return tiny.written(writer, path)


def tensor_shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    """Shapes [rows, columns] of the target's tensors."""
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (HEADS * HEAD, WIDTH), "attn_k": (KV * HEAD, WIDTH),
        "attn_v": (KV * HEAD, WIDTH), "attn_output": (WIDTH, HEADS * HEAD), "ffn_gate": (FF, WIDTH),
        "ffn_up": (FF, WIDTH), "ffn_down": (WIDTH, FF),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, WIDTH)}
    shapes["output_norm.weight"] = (WIDTH,)
    for number in range(LAYERS):
        shapes |= {f"blk.{number}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng((seed, len(name), sum(map(ord, name))))
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
