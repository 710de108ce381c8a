"""Child process: loads a GGUF with every check llama.cpp has, and decodes one token.

    _trial.py PATH ADDRESS_SPACE_BYTES

Run by path; imports no pyspec. Prints one JSON object {"ok", "error"} as its last line.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType


def limit(address_space: int) -> None:
    """No core file, and no more memory than a load can need."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no limits to set
        import resource  # noqa: PLC0415 - absent on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > address_space:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, hard))


def trial(lc: ModuleType, path: str) -> str:
    """Loads the model and decodes one token; returns what went wrong, or the empty string."""
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    params.n_gpu_layers = 0
    params.check_tensors = True
    params.use_extra_bufts = False  # no repacking: it copies all weights and proves nothing
    model = lc.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        return "llama.cpp cannot load it"
    if lc.llama_model_has_encoder(model):
        return ""  # nothing to decode without an encoded text
    return decode_one(lc, model)


def decode_one(lc: ModuleType, model: ctypes.c_void_p) -> str:
    """Decodes token 0 at position 0 and looks for logits that are not finite."""
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 64, 8, 8, 1
    params.n_threads = params.n_threads_batch = 2
    context = lc.llama_init_from_model(model, params)
    if not context:
        return "llama.cpp cannot make a context for it"
    tokens = (lc.llama_token * 1)(0)
    status = lc.llama_decode(context, lc.llama_batch_get_one(tokens, 1))
    if status != 0:
        return f"decoding one token returned {status}"
    logits = lc.llama_get_logits_ith(context, -1)
    if not logits:
        return "decoding one token gave no logits"
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    if not np.isfinite(np.ctypeslib.as_array(logits, shape=(n_vocab,))).all():
        return "its logits are not finite, so the weights are damaged"
    return ""


def main(path: str, address_space: str) -> int:
    """Runs the trial; returns the exit status."""
    limit(int(address_space))
    from llama_cpp import llama_cpp as lc  # noqa: PLC0415 - the limits come first

    errors: list[str] = []

    def log(level: int, text: bytes, _data: object) -> None:
        if level == 4:
            errors.append(text.decode("utf-8", "replace").strip())

    callback = lc.llama_log_callback(log)
    lc.llama_log_set(callback, ctypes.c_void_p(0))
    error = trial(lc, path)
    if error and errors:
        error = f"{error}: {errors[0]}"
    sys.stdout.write(json.dumps({"ok": not error, "error": error}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the verdict stands; freeing gigabytes first would only take time


if __name__ == "__main__":
    main(*sys.argv[1:])
