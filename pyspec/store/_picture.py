"""The child process that works on pictures, which may crash it.

    _picture.py projector PATH MODEL                  load a projector beside its model, and encode a picture
    _picture.py picture SOURCE OUT ADDRESS_SPACE      decode a picture into rows of RGB; the limit is in bytes

Each prints one line, a JSON object {"ok", "error"}.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspec.store._child import KEPT, bindings, errors_of, limit, say


def _mtmd(errors: list[str]) -> ModuleType:
    """Import the library of projectors, and append the errors that it logs to a list."""

    def log(level: int, text: bytes, _data: object) -> None:
        if level == 4:
            errors.append(text.decode("utf-8", "replace").strip())

    mtmd = import_module("llama_cpp.mtmd_cpp")
    callback = mtmd.llama_cpp.llama_log_callback(log)
    KEPT.append(callback)
    mtmd.mtmd_log_set(callback, ctypes.c_void_p(0))
    mtmd.mtmd_helper_log_set(callback, ctypes.c_void_p(0))
    return mtmd


def run_projector(path: str, model_path: str) -> None:
    limit()
    lc = bindings()
    errors = errors_of(lc)
    mtmd = _mtmd(errors)
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = 0, False
    model = lc.llama_model_load_from_file(os.fsencode(model_path), params)
    error = _encode(mtmd, path, model) if model else "its model cannot be loaded"
    say(json.dumps({"ok": not error, "error": ": ".join([error, *errors[:1]])}))
    os._exit(0)


def _encode(mtmd: ModuleType, path: str, model: Any) -> str:
    """Encode a grey picture; return what went wrong, or the empty string."""
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = params.print_timings = params.warmup = False
    ctx = mtmd.mtmd_init_from_file(os.fsencode(path), model, params)
    if not ctx:
        return "it does not load beside this model"
    if not mtmd.mtmd_support_vision(ctx):
        return "it is not for pictures"
    side, marker = 64, mtmd.mtmd_default_marker()
    grey = (ctypes.c_uint8 * (3 * side * side))(*[128] * (3 * side * side))
    text = mtmd.mtmd_input_text(marker, len(marker), False, True)
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(mtmd.mtmd_bitmap_init(side, side, grey))
    chunks = mtmd.mtmd_input_chunks_init()
    if mtmd.mtmd_tokenize(ctx, chunks, ctypes.byref(text), bitmaps, 1) != 0:
        return "it does not take a picture"
    found = [
        mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))
    ]
    rows = [
        c for c in found if mtmd.mtmd_input_chunk_get_type(c) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE
    ]
    if not rows or any(mtmd.mtmd_encode_chunk(ctx, chunk) != 0 for chunk in rows):
        return "it does not encode a picture"
    return "" if math.isfinite(mtmd.mtmd_get_output_embd(ctx)[0]) else "its rows are not finite"


def run_picture(source: str, out: str, address_space: str) -> None:
    limit(AS=int(address_space))
    bindings()
    errors: list[str] = []
    mtmd = _mtmd(errors)
    data = bytearray(Path(source).read_bytes())
    buffer = (ctypes.c_uint8 * len(data)).from_buffer(data)
    bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(None, buffer, len(data), False)
    if bitmap:
        n = mtmd.mtmd_bitmap_get_n_bytes(bitmap)
        pixels = ctypes.cast(mtmd.mtmd_bitmap_get_data(bitmap), ctypes.POINTER(ctypes.c_uint8 * n))
        Path(out).write_bytes(pixels.contents)
    say(json.dumps({"ok": bool(bitmap), "error": " ".join(errors[-1:]) or "it is damaged"}))
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "projector":
        run_projector(*sys.argv[2:])
    else:
        run_picture(*sys.argv[2:])
