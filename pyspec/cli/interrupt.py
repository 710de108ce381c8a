"""Ctrl-C that reaches the engine while C is decoding."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

TWICE_S = 2.0
"""A second Ctrl-C within this time means leaving."""


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """While inside, the first Ctrl-C calls `cancel` at once and a second within 2 s raises KeyboardInterrupt.

    Python runs its own handlers only between bytecodes, and a decode may take seconds. So the signal's number travels through the
    wakeup descriptor to a thread that is free to act: decodes release the GIL. For the main thread only.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(
        target=_watch, args=(reader, cancel), name="pyspec-interrupt", daemon=True
    )
    last = [float("-inf")]

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if monotonic() - last[0] < TWICE_S:
            raise KeyboardInterrupt
        last[0] = monotonic()

    old_handler = signal.signal(signal.SIGINT, handle)
    old_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_writer)
        signal.signal(signal.SIGINT, old_handler)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _watch(reader: int, cancel: Callable[[], None]) -> None:
    while numbers := os.read(reader, 16):
        if signal.SIGINT in numbers:
            cancel()
