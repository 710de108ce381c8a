"""llama.cpp's own log lines: kept away from answers, shown where they are asked for."""

from __future__ import annotations

import ctypes
import sys

import llama_cpp


def hush_llama(verbose: bool) -> None:
    """Drop llama.cpp's log lines, or show them on stderr.

    An answer that is cancelled makes llama.cpp log errors of its own; what went wrong is said in a sentence of ours.
    """
    llama_cpp.llama_log_set(_show if verbose else _DROP, ctypes.c_void_p(0))


_DROP = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, llama_cpp.llama_log_callback)
"""A function in C that does nothing with what it is given. One in Python would swallow signals: a KeyboardInterrupt that is
raised in a callback goes no further, and llama.cpp logs all the time while it loads."""


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _show(_level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    sys.stderr.write(text.decode("utf-8", "replace"))
    sys.stderr.flush()
