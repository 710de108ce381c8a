"""Child process: converts a GGUF with llama.cpp's quantiser. Run by path; imports no pyspec.

    _quantize.py SOURCE OUT FTYPE THREADS

Prints `tensor I N` for each tensor, and as the last line a JSON object {"ok", "error"}. It is a
process of its own because llama.cpp ends the process on some faults.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys

from llama_cpp import llama_cpp as lc

_STEP = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")


def say(line: str) -> None:
    """Writes one line to the parent, flushed."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(source: str, out: str, ftype: str, threads: str) -> int:
    """Converts one file; returns the exit status."""
    errors: list[str] = []

    def log(level: int, text: bytes, _data: object) -> None:
        line = text.decode("utf-8", "replace")
        if step := _STEP.match(line):
            say(f"tensor {step[1]} {step[2]}")
        elif level == 4:
            errors.append(line.strip())

    callback = lc.llama_log_callback(log)
    lc.llama_log_set(callback, ctypes.c_void_p(0))
    lc.llama_backend_init()
    params = lc.llama_model_quantize_default_params()
    params.ftype = int(ftype)
    params.nthread = int(threads)
    params.allow_requantize = True
    status = lc.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(params))
    error = "" if status == 0 else " ".join(errors[-1:]) or f"status {status}"
    say(json.dumps({"ok": status == 0, "error": error}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
