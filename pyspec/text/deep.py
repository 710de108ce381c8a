"""Calls on a thread with a stack of a given size: llama.cpp's tokenizers recurse once a character of a long run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from pyspec.errors import EngineError

_Result = TypeVar("_Result")

_STARTING = threading.Lock()
"""`threading.stack_size` holds for the whole process."""


def call_deep(work: Callable[[], _Result], stack: int) -> _Result:
    """What `work` returns, done on a stack of so many bytes; they are address space until they are used.

    An interrupt of the caller is raised when the work is done: what it works on must not be freed before. Raises
    EngineError where there is no room for the stack.
    """
    future = _started(work, stack)
    interrupt: BaseException | None = None
    while not future.done():
        try:
            wait([future])
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return future.result()


def _started(work: Callable[[], _Result], stack: int) -> Future[_Result]:
    pool = ThreadPoolExecutor(1, "pyspec-deep")
    with _STARTING:
        before = threading.stack_size(stack)
        try:
            return pool.submit(work)
        except (RuntimeError, MemoryError) as error:
            raise EngineError(
                f"no memory for a stack of {stack >> 20} MiB, which a text as long as this needs",
                "shorten its lines",
            ) from error
        finally:
            threading.stack_size(before)
            pool.shutdown(wait=False)
