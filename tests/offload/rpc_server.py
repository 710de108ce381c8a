"""A processor as a device of llama.cpp's RPC: `python rpc_server.py PORT [BYTES]`, with so much memory and no more.

Needs llama-cpp-python built with GGML_RPC. The limit is put between ggml and its buffers: what is free is reported truly,
and what is more than that is refused, as by a graphics card.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import llama_cpp

_LIBRARIES = [
    ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / f"lib{name}.so"))
    for name in ("ggml", "ggml-base", "ggml-rpc")
]
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_KEPT: list[Any] = []


def function(name: str, restype: Any, *argtypes: Any) -> Any:
    library = next(each for each in _LIBRARIES if hasattr(each, name))
    return ctypes.CFUNCTYPE(restype, *argtypes)((name, library))


def replace(struct: int, index: int, restype: Any, *argtypes: Any) -> Any:
    """Decorates what takes the place of a struct's function pointer; it is given the old one first."""

    def decorate(new: Any) -> Any:
        place = ctypes.cast(struct, ctypes.POINTER(_POINTER))
        kind = ctypes.CFUNCTYPE(restype, *argtypes)
        old = kind(place[index])
        callback = kind(lambda *arguments: new(old, *arguments))
        _KEPT.append(callback)
        place[index] = ctypes.cast(callback, _POINTER)
        return new

    return decorate


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def limit(device: int, most: int) -> None:
    """Give a device `most` bytes: of ggml's structs, a device tells its memory third, a buffer type allocates second."""
    used: dict[int, int] = {}
    kinds = ctypes.POINTER(_SIZE)

    @replace(device, 2, None, _POINTER, kinds, kinds)
    def get_memory(_old: Any, _device: int, free: Any, total: Any) -> None:
        free[0], total[0] = max(0, most - sum(used.values())), most

    buffer_type = function("ggml_backend_dev_buffer_type", _POINTER, _POINTER)(device)

    @replace(buffer_type, 1, _POINTER, _POINTER, _SIZE)
    def allocate(old: Any, kind: int, size: int) -> int | None:
        if sum(used.values()) + size > most:
            say(f"refused {size}")
            return None
        made: int = old(kind, size)
        used[made] = size
        say(f"used {sum(used.values())}")

        @replace(made, 0, None, _POINTER)
        def free(old: Any, buffer: int) -> None:
            used.pop(buffer, None)
            old(buffer)

        return made


def main(port: str, most: str = "0", count: str = "1") -> None:
    llama_cpp.llama_backend_init()
    device = function("ggml_backend_dev_by_type", _POINTER, ctypes.c_int)(0)  # the processor
    if int(most):
        limit(device, int(most))
    serve = function(
        "ggml_backend_rpc_start_server", None, ctypes.c_char_p, ctypes.c_char_p, _SIZE, _SIZE, _POINTER
    )  # fmt: skip
    devices = (_POINTER * int(count))(*[device] * int(count))
    serve(f"127.0.0.1:{port}".encode(), None, 1, int(count), devices)


if __name__ == "__main__":
    main(*sys.argv[1:])
