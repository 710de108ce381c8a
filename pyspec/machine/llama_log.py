"""llama.cpp's log of this process: dropped, or sent elsewhere for a while."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp

DROP = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, llama_cpp.llama_log_callback)
"""A C function that ignores its arguments. A Python callback would swallow KeyboardInterrupt, since an exception cannot leave a
callback, and llama.cpp logs all the time while it loads."""


@contextmanager
def log_to(callback: Any) -> Iterator[None]:
    """Send llama.cpp's log lines to a `llama_log_callback` meanwhile, and nowhere else."""
    before, data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    llama_cpp.llama_log_set(callback, ctypes.c_void_p())
    try:
        yield
    finally:
        llama_cpp.llama_log_set(before, data)
