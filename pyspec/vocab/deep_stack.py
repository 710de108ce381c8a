"""Runs a call on a thread with a given stack size: llama.cpp's tokenizers recurse once per character of a long run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from pyspec.errors import EngineError

_Result = TypeVar("_Result")

_STARTING = threading.Lock()
"""Guards `threading.stack_size`, which applies to the whole process."""


_HERE = threading.local()
"""`stack`: the stack of a thread that was started here."""


def call_with_stack(work: Callable[[], _Result], stack: int) -> _Result:
    """Call `work` on a thread with `stack` bytes of stack, and return its result. Unused stack is only address space.

    That is the calling thread if it was started here.

    An interrupt is raised only once the work is done, because its data must not be freed earlier. Raises EngineError if
    there is no memory for the stack.
    """
    if getattr(_HERE, "stack", 0) >= stack:
        return work()

    def begun() -> _Result:
        _HERE.stack = stack
        return work()

    future = _started(begun, stack)
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
