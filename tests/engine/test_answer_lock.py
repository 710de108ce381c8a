"""One answer at a time; a stream that nobody can read any more releases the lock."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from helpers.devices import LAYERS

from pyspec.engine.answer_lock import AnswerLock
from pyspec.errors import EngineBusy


def _count() -> Generator[int, None, None]:
    yield from range(10)


def _drop_in_a_cycle(stream: Generator[int, None, None]) -> None:
    """What a server does with a stream whose client left: the exception's traceback holds it, and it the exception."""
    try:
        next(stream)
        raise OSError("client left")
    except OSError as error:
        held = [error, stream]
        held.append(held)


def test_dropped_stream_gives_its_turn_to_who_waits() -> None:
    """Also where only the garbage collector can find that nobody reads it, and nothing else makes it run."""
    lock = AnswerLock(wait=True, forks=True)
    gc.disable()
    try:
        _drop_in_a_cycle(lock.held(_count()))
        assert list(lock.held(_count())) == list(range(10))
    finally:
        gc.enable()


def test_paused_stream_keeps_its_turn() -> None:
    """A newcomer is refused, and what was begun goes on."""
    lock = AnswerLock(wait=False, forks=True)
    stream = lock.held(_count())
    assert next(stream) == 0
    with pytest.raises(EngineBusy):
        next(lock.held(_count()))
    assert list(stream) == list(range(1, 10))


def test_patience_ends() -> None:
    """A wait of some seconds is refused after them."""
    lock = AnswerLock(wait=0.1, forks=True)
    stream = lock.held(_count())
    next(stream)
    with pytest.raises(EngineBusy, match=r"after 0\.1 s"):
        next(lock.held(_count()))
    stream.close()
    assert next(lock.held(_count())) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_told(open_llama: Callable[..., Any], tiny_target: Path) -> None:
    """Its threads are not there: a decode would wait for them for ever. With one thread there is nothing to wait for.

    A device's connection is the parent's: one thread is no help there.
    """
    alone = b"EngineError" if LAYERS else b"answered"
    for threads, wanted in ((2, b"EngineError"), (1, alone)):
        llm = open_llama(tiny_target, n_threads=threads, n_threads_batch=threads)
        llm.create_completion("abc", max_tokens=4)
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                llm.create_completion("abc", max_tokens=4)
                os.write(writing, b"answered")
            except BaseException as error:  # noqa: BLE001 - its name is told
                os.write(writing, type(error).__name__.encode())
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        os.close(writing)
        assert os.read(reading, 100) == wanted
        os.close(reading)
