"""Drafts that read states, by llama.cpp's own calls alone: what those of the engine are compared with."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext as ext

from helpers import tiny


@contextmanager
def loaded(path: Path) -> Iterator[Any]:
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    yield model
    llama_cpp.llama_model_free(model)


@contextmanager
def context_of(model: Any, *, chosen: bool = True, **options: Any) -> Iterator[Any]:
    """A context that keeps states; chosen: those of rows with logits alone. options: fields of its parameters."""
    params = llama_cpp.llama_context_default_params()
    # more threads than one leave a pool of them, in which a fork waits for ever
    for name, value in {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, **options}.items():
        setattr(params, name, value)
    context = llama_cpp.llama_init_from_model(model, params)
    ext.llama_set_embeddings_nextn(context, True, chosen)
    yield context
    llama_cpp.llama_free(context)


def decode(
    context: Any, tokens: Sequence[int], first: int, states: np.ndarray | None, width: int = tiny.N_EMBD,
) -> np.ndarray:  # fmt: skip
    """Decode with every row wanted; returns their states, [n, width]."""
    n = len(tokens)
    batch = llama_cpp.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, 1
    if states is not None:
        rows = np.ascontiguousarray(states, np.float32)
        batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    assert llama_cpp.llama_decode(context, batch) == 0
    batch.embd = None
    llama_cpp.llama_batch_free(batch)
    found = ext.llama_get_embeddings_nextn(context)
    return np.ctypeslib.as_array(found, shape=(n, width)).copy()


def likeliest(context: Any, n_vocab: int = tiny.N_VOCAB) -> int:
    """The token that the last row decoded makes likeliest."""
    row = llama_cpp.llama_get_logits_ith(context, -1)
    return int(np.ctypeslib.as_array(row, shape=(n_vocab,)).argmax())
