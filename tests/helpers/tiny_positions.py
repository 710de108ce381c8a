"""Tiny random models with a table of learned positions, as GPT-2 (a decoder) and BERT (an embedder) have one."""

from __future__ import annotations

from pathlib import Path

import gguf
import llama_cpp
import numpy as np

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


def bert(positions: int, *, ranks: bool = False) -> Gguf:
    """One layer; it turns texts of so many tokens into embeddings. ranks: with a head that turns those into a score."""
    whole = tiny_llama(width=WIDTH)
    n_vocab = whole.tensor("token_embd.weight").shape[1]
    made = _of_arch(whole, "bert", positions)
    made.kv["bert.attention.causal"] = (BOOL, False)
    made.kv["bert.pooling_type"] = (U32, 1)
    made.kv["tokenizer.ggml.token_type_count"] = (U32, 2)
    shapes = {
        "token_embd.weight": (WIDTH, n_vocab),
        "position_embd.weight": (WIDTH, positions),
        "token_types.weight": (WIDTH, 2),
    }
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        shapes |= _both(name, VECTOR)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        shapes |= _both(f"blk.0.{name}", SQUARE)
    if ranks:
        shapes |= _both("cls", SQUARE) | _both("cls.output", (WIDTH, 1))
    return _fill(made, shapes)


def rank_of(path: Path, query: str, document: str) -> float:
    """What a ranking model has to say: its head, by numpy, on the state of the first token, which llama_cpp computes."""
    llm = llama_cpp.Llama(
        str(path), embedding=True, pooling_type=2, n_ctx=64, n_batch=64, n_threads=1, verbose=False
    )
    texts = [llm.tokenize(text.encode(), add_bos=False) for text in (query, document)]
    llm._batch.reset()
    llm._batch.add_sequence([llm.token_bos(), *texts[0], *texts[1]], 0, True)
    llm._ctx.decode(llm._batch)
    found = llama_cpp.llama_get_embeddings_seq(llm._ctx.ctx, 0)
    state = np.ctypeslib.as_array(found, (WIDTH,)).copy()
    llm.close()
    tensors = gguf.GGUFReader(path).tensors
    head = {each.name: np.array(each.data) for each in tensors if each.name.startswith("cls")}
    hidden = np.tanh(head["cls.weight"].reshape(SQUARE) @ state + head["cls.bias"])
    return float(
        (head["cls.output.weight"].reshape(1, WIDTH) @ hidden + head["cls.output.bias"])[0]
    )
