"""Ctrl-C and SIGTERM that reach the engine while C is decoding."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from types import FrameType

TWICE_S = 2.0
"""A second Ctrl-C within this time means leaving."""

BOTH = (signal.SIGINT, signal.SIGTERM)
"""What ends an answer: Ctrl-C at a terminal, SIGTERM from a supervisor."""


@contextmanager
def interruptible(cancel: Callable[[], None], signals: Sequence[int] = BOTH) -> Iterator[list[int]]:
    """While inside, the first signal calls `cancel` at once; a second within 2 s raises KeyboardInterrupt, or SystemExit.

    signals: which ones are meant; the list that comes with `with` has those that arrived.
    Python runs its own handlers only between bytecodes, and a decode may take seconds. So the signal's number travels through the
    wakeup descriptor to a thread that is free to act: decodes release the GIL. For the main thread only.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(
        target=_watch, args=(reader, cancel, signals), name="pyspec-interrupt", daemon=True
    )
    last = [float("-inf")]
    seen: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if monotonic() - last[0] < TWICE_S:
            if number == signal.SIGTERM:
                raise SystemExit(exit_code(seen))
            raise KeyboardInterrupt
        last[0] = monotonic()

    old_handlers = {number: signal.signal(number, handle) for number in signals}
    old_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield seen
    finally:
        signal.set_wakeup_fd(old_writer)
        for number, old in old_handlers.items():
            signal.signal(number, old)
        os.close(writer)
        watcher.join()
        os.close(reader)


def exit_code(seen: Sequence[int]) -> int:
    """What a program ends with that these signals ended: 143 after SIGTERM, else 130."""
    return 143 if signal.SIGTERM in seen else 130


def _watch(reader: int, cancel: Callable[[], None], signals: Sequence[int]) -> None:
    while numbers := os.read(reader, 16):
        if any(number in numbers for number in signals):
            cancel()
