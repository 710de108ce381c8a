"""Calls on a thread with a stack of a given size: llama.cpp's tokenizers recurse once a character of a long run."""

from __future__ import annotations

import threading
from collections.abc import Callable
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
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="pyspec-deep", daemon=True)
    _start(thread, stack)
    interrupt: BaseException | None = None
    while thread.is_alive():
        try:
            thread.join()
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
    if interrupt is not None:
        raise interrupt
    if errors:
        raise errors[0]
    return results[0]


def _start(thread: threading.Thread, stack: int) -> None:
    with _STARTING:
        before = threading.stack_size(stack)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            raise EngineError(
                f"no memory for a stack of {stack >> 20} MiB, which a text as long as this needs",
                "shorten its lines",
            ) from error
        finally:
            threading.stack_size(before)
