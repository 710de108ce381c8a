"""The only importer of the C extension: binds it to llama_cpp's llama.cpp, and turns its statuses into exceptions.

Importing this module imports llama_cpp (which follows LLAMA_CPP_LIB_PATH), compares versions and struct layouts, and gives the
extension the address of each llama.cpp function, so that one copy of libllama serves both. Any mismatch raises an ImportError
with one sentence.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as _llama

from pyspec import errors
from pyspec._version import LLAMA_CPP_VERSION, __version__, interface_key

try:
    from pyspec._native import ffi, lib
except ModuleNotFoundError as error:
    if error.name != "pyspec._native":
        raise
    _MESSAGE = (
        f"pyspec was imported from {Path(__file__).parent}, where its extension has not been built; "
        "run `pip install .` or `pip install -e .` in the clone"
    )
    raise ImportError(_MESSAGE) from error

# otherwise an abort starts a debugger, which writes to stdout
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

__all__ = ["ffi", "lib"]  # for others too

_NO_FAULT_OF_YOURS = "this is a fault in pyspec; please report it"

_EXCEPTIONS: dict[int, tuple[type[errors.EngineError], str]] = {
    lib.PS_E_ARG: (errors.EngineError, _NO_FAULT_OF_YOURS),
    lib.PS_E_NOMEM: (errors.EngineError, "lower n_ctx (-c) or the number of sequences"),
    lib.PS_E_BUSY: (errors.EngineBusy, "use one object per thread, or a lock"),
    lib.PS_E_UNBOUND: (errors.EngineError, _NO_FAULT_OF_YOURS),
    lib.PS_E_DECODE: (
        errors.EngineError,
        "the model or its backend failed; llama.cpp's log (verbose=True) says why",
    ),
    lib.PS_E_NOSLOT: (errors.EngineError, "raise n_ctx (-c) or lower the number of sequences"),
    lib.PS_E_CANCELLED: (errors.Cancelled, ""),
    lib.PS_E_NUMERIC: (errors.NumericError, "the model file or its backend is damaged"),
    lib.PS_E_STATE: (errors.EngineError, _NO_FAULT_OF_YOURS),
    lib.PS_E_SAMPLER: (errors.EngineError, "loosen the grammar or the sampling options"),
}


def check(status: int, what: str = "") -> None:
    """Raise the exception for a `ps_status`; PS_OK returns.

    what: the action that failed; the message begins with it.
    """
    if status == lib.PS_OK:
        return
    kind, hint = _EXCEPTIONS.get(status, (errors.EngineError, _NO_FAULT_OF_YOURS))
    text = str(ffi.string(lib.ps_status_str(status)).decode())
    message = f"{what}: {text}" if what else text
    raise kind(message, hint, code=status)


def address(pointer: Any) -> int:
    """The address in any kind of ctypes pointer; 0 for None."""
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _check_key(wanted: str, built: str) -> None:
    """Refuse an extension built from another header than the sources have; an installed package has no header."""
    if wanted and built != wanted:
        message = (
            "pyspec's extension was built from other sources than these; "
            "run `pip install .` or `pip install -e .` in the clone"
        )
        raise ImportError(message)


def _check_versions(ours: str, theirs: str) -> None:
    """Refuse a llama_cpp whose layout is not known to match ours."""
    if theirs != LLAMA_CPP_VERSION:
        message = (
            f"pyspec {ours} works with llama-cpp-python {LLAMA_CPP_VERSION}, but {theirs} is installed; "
            f"run `pip install llama-cpp-python=={LLAMA_CPP_VERSION}`"
        )
        raise ImportError(message)


def _layout(name: str, library: Any) -> int:
    """Ctypes' size of `struct`, or its offset of `struct.field`."""
    struct, _, field = name.partition(".")
    kind = getattr(library, struct)
    return int(getattr(kind, field).offset if field else ctypes.sizeof(kind))


def _check_layout(library: Any) -> None:
    """Compare each size and offset that the extension was compiled with to llama_cpp's."""
    name, value = ffi.new("const char **"), ffi.new("int32_t *")
    index = 0
    while lib.ps_abi_entry(index, name, value) == lib.PS_OK:
        index += 1
        entry = ffi.string(name[0]).decode()
        theirs = _layout(entry, library)
        if theirs != value[0]:
            message = f"pyspec was compiled with {entry} at {value[0]} bytes, but llama_cpp {llama_cpp.__version__} has {theirs}"
            raise ImportError(message)


_CPP_NAMES = {
    f"llama_{name}": f"_Z{len(name) + 6}llama_{name}{itanium}"
    for name, itanium in (
        ("set_embeddings_layer_inp", "P13llama_contextjb"),
        ("get_embeddings_layer_inp", "P13llama_contextj"),
        ("set_embeddings_nextn", "P13llama_contextbb"),
        ("get_embeddings_nextn", "P13llama_context"),
        ("get_embeddings_nextn_ith", "P13llama_contexti"),
        ("set_nextn_layer_offset", "P13llama_contexti"),
    )
}
"""Functions that llama.cpp exports under C++ names, as the Itanium ABI spells them."""


def find_function(handle: ctypes.CDLL, name: str) -> Any:
    """The function `name` of the library. Raises ImportError if it has none."""
    try:
        return getattr(handle, _CPP_NAMES.get(name, name))
    except AttributeError:
        message = f"pyspec calls {name}, but {handle._name} does not have it"  # noqa: SLF001
        raise ImportError(message) from None


def _bind(handle: ctypes.CDLL) -> None:
    """Give the extension the address of each llama.cpp function it calls."""
    index = 0
    while (spelled := lib.ps_api_name(index)) != ffi.NULL:
        name = ffi.string(spelled).decode()
        function = find_function(handle, name)
        check(lib.ps_api_bind(index, ffi.cast("void *", address(function))), name)
        index += 1


def _connect() -> None:
    built = ffi.string(lib.ps_key()).decode() if hasattr(lib, "ps_key") else ""
    _check_key(interface_key(Path(__file__).parents[1]), built)
    _check_versions(__version__, llama_cpp.__version__)
    _check_layout(_llama)
    _bind(_llama._lib)  # noqa: SLF001 (the handle itself: a path could load a second copy)


_connect()
_PAUSE_SOFT = 1  # OpenMP's omp_pause_soft
_PROCESS = os.getpid()  # a fork of it has no workers, and would wait for those of its parent


def release_workers() -> None:
    """End the OpenMP threads that ggml keeps for the calling thread; its next decode starts new ones, in some .1 ms.

    Each thread that has decoded keeps such workers while it lives. If all workers of a process outnumber the processors, GCC's
    runtime no longer lets them spin where they wait for each other, hundreds of times per token: a decode then takes 2.6 times as
    long (2 processors, a model of 135 million parameters), although nobody else computes. Nothing happens without OpenMP,
    or in a fork.
    """
    pause = getattr(_llama._lib, "omp_pause_resource", None)  # noqa: SLF001 - as above
    if pause is not None and os.getpid() == _PROCESS:
        pause(_PAUSE_SOFT, _llama._lib.omp_get_initial_device())  # noqa: SLF001


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
