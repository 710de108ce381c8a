"""Child process: loads a GGUF as the run will, with every check llama.cpp has, and decodes some rows.

    _trial.py PATH ADDRESS_SPACE_BYTES LOADING_JSON

Run by path; imports no pyspec. Prints one JSON object {"ok", "error"} as its last line.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module, util
from types import ModuleType
from typing import Any

ROWS = (1, 8, 64)
"""Rows of the decodes: an answer's step, a verified draft, a prompt. Each takes other kernels."""

MOST_CONTEXT = 8192
"""Tokens of context that are tried; more only takes longer."""

MOST_SECONDS = 1.0
"""For turning a line into tokens, which takes microseconds unless it has no end; memory grows by gigabytes meanwhile."""

TEXT = "Hello, w\u00f6rld\n\0\ufffd \u4e16\u754c".encode()
"""Words, a letter that is not ASCII, NUL, and what stands for damaged text."""


def limit(address_space: int) -> None:
    """No core file, and no more memory than a load can need; 0 for no limit."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no limits to set
        import resource  # noqa: PLC0415 - absent on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if address_space and (hard == resource.RLIM_INFINITY or hard > address_space):
            resource.setrlimit(resource.RLIMIT_AS, (address_space, hard))


def bindings() -> ModuleType:
    """llama_cpp's module of C calls without the package around it, which takes longer to import than the trial itself."""
    spec = util.find_spec("llama_cpp")
    if spec is None:
        raise ImportError("llama-cpp-python is not installed")
    package = sys.modules["llama_cpp"] = ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations or ())
    return import_module("llama_cpp.llama_cpp")


def trial(lc: ModuleType, path: str, loading: dict[str, Any]) -> str:
    """Loads the model and decodes; returns what went wrong, or the empty string."""
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    params.n_gpu_layers = loading["n_gpu_layers"]
    params.use_extra_bufts = loading["extra_buffers"]
    params.check_tensors = True
    params.vocab_only = loading["vocab_only"]
    model = lc.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        return "llama.cpp cannot load it"
    tokenize(lc, lc.llama_model_get_vocab(model))
    if loading["vocab_only"] or lc.llama_model_has_encoder(model):
        return ""  # nothing to decode without weights, or without an encoded text
    context = make_context(lc, model, loading)
    if not context:
        return "llama.cpp cannot make a context for it"
    return decode(lc, model, context)


def tokenize(lc: ModuleType, vocab: Any) -> None:
    """Turns texts into tokens: llama.cpp ends the process where the vocabulary contradicts itself."""
    kind = lc.llama_vocab_type(vocab)
    if kind == lc.LLAMA_VOCAB_TYPE_NONE:
        return
    spells = kind != lc.LLAMA_VOCAB_TYPE_SPM or has_bytes(lc, vocab)
    room = (lc.llama_token * 256)()
    with at_most(MOST_SECONDS):
        for text in (
            b"",
            TEXT if spells else b"",
        ):  # what cannot be spelled is refused where texts come in
            for special in (False, True):
                lc.llama_tokenize(vocab, text, len(text), room, len(room), True, special)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let the system end this process if what is inside takes more of the processor's time."""
    if not hasattr(signal, "setitimer"):  # Windows: the parent's patience is all there is
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def has_bytes(lc: ModuleType, vocab: Any) -> bool:
    """Whether the vocabulary has a token for each of the 256 bytes."""
    missing = {b"<0x%02X>" % byte for byte in range(256)}
    for token in range(lc.llama_vocab_n_tokens(vocab)):
        missing.discard(lc.llama_vocab_get_text(vocab, token))
        if not missing:
            return True
    return False


def make_context(lc: ModuleType, model: Any, loading: dict[str, Any]) -> Any:
    """A context as the run will make it, as far as kernels depend on it."""
    params = lc.llama_context_default_params()
    params.n_ctx = max(sum(ROWS), min(loading["n_ctx"], MOST_CONTEXT))
    params.n_batch = params.n_ubatch = max(ROWS)
    params.n_seq_max = 1
    params.n_threads = params.n_threads_batch = loading["n_threads"]
    flash = (lc.LLAMA_FLASH_ATTN_TYPE_DISABLED, lc.LLAMA_FLASH_ATTN_TYPE_ENABLED)
    params.flash_attn_type = flash[loading["flash_attn"]]
    return lc.llama_init_from_model(model, params)


def decode(lc: ModuleType, model: Any, context: Any) -> str:
    """Decodes 1, 8 and 64 rows and looks for logits that are not finite."""
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    done = 0
    for n in ROWS:
        batch = lc.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i in range(n):
            batch.token[i], batch.pos[i] = (done + i) % n_vocab, done + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, n <= 8 or i == n - 1
        status = lc.llama_decode(context, batch)
        if status != 0:
            return f"decoding {n} tokens returned {status}"
        logits = lc.llama_get_logits_ith(context, n - 1)
        if not logits:
            return f"decoding {n} tokens gave no logits"
        if not all(map(math.isfinite, logits[:n_vocab])):
            return "its logits are not finite, so the weights are damaged"
        done += n
    return ""


def main(path: str, address_space: str, loading: str) -> int:
    """Runs the trial; returns the exit status."""
    limit(int(address_space))
    lc = bindings()
    errors: list[str] = []

    def log(level: int, text: bytes, _data: object) -> None:
        if level == 4:
            errors.append(text.decode("utf-8", "replace").strip())

    callback = lc.llama_log_callback(log)
    lc.llama_log_set(callback, ctypes.c_void_p(0))
    error = trial(lc, path, json.loads(loading))
    if error and errors:
        error = f"{error}: {errors[0]}"
    sys.stdout.write(json.dumps({"ok": not error, "error": error}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the verdict stands; freeing gigabytes first would only take time


if __name__ == "__main__":
    main(*sys.argv[1:])
