"""Tiny random models with a table of learned positions, as GPT-2 (a decoder) and BERT (an embedder) have one."""

from helpers.make_gguf import BOOL, F32, U32, Gguf, Tensor, floats, tiny_llama

WIDTH = 32
VECTOR = (WIDTH,)
SQUARE = (WIDTH, WIDTH)


def _of_arch(made: Gguf, arch: str, positions: int) -> Gguf:
    """The vocabulary and the sizes of the tiny llama, under another architecture's keys; no tensors."""
    kv = {key.replace("llama.", f"{arch}."): value for key, value in made.kv.items()}
    kv["general.architecture"] = (kv["general.architecture"][0], arch)
    kv[f"{arch}.context_length"] = (U32, positions)
    kv[f"{arch}.attention.layer_norm_epsilon"] = (F32, 1e-5)
    return Gguf(kv)


def _fill(made: Gguf, shapes: dict[str, tuple[int, ...]]) -> Gguf:
    made.tensors = [
        Tensor(n, s, floats(s, seed, 0.3)) for seed, (n, s) in enumerate(shapes.items())
    ]
    return made


def _both(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}


def gpt2(positions: int) -> Gguf:
    """One layer; it knows so many positions."""
    whole = tiny_llama(width=WIDTH)
    n_vocab = whole.tensor("token_embd.weight").shape[1]
    shapes = {"token_embd.weight": (WIDTH, n_vocab), "position_embd.weight": (WIDTH, positions)}
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        shapes |= _both(name, VECTOR)
    for name in ("attn_output", "ffn_up", "ffn_down"):
        shapes |= _both(f"blk.0.{name}", SQUARE)
    shapes |= _both("blk.0.attn_qkv", (WIDTH, 3 * WIDTH))
    return _fill(_of_arch(whole, "gpt2", positions), shapes)


def bert(positions: int) -> Gguf:
    """One layer; it turns texts of so many tokens into embeddings."""
    whole = tiny_llama(width=WIDTH)
    n_vocab = whole.tensor("token_embd.weight").shape[1]
    made = _of_arch(whole, "bert", positions)
    made.kv["bert.attention.causal"] = (BOOL, False)
    made.kv["bert.pooling_type"] = (U32, 1)
    made.kv["tokenizer.ggml.token_type_count"] = (U32, 2)
    shapes = {
        "token_embd.weight": (WIDTH, n_vocab), "position_embd.weight": (WIDTH, positions),
        "token_types.weight": (WIDTH, 2),
    }  # fmt: skip
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        shapes |= _both(name, VECTOR)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        shapes |= _both(f"blk.0.{name}", SQUARE)
    return _fill(made, shapes)
