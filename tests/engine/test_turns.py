"""Turns: one answer at a time, and a stream that nobody can read any more gives its turn back."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from pyspec.engine.turns import Turns
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
    turns = Turns(wait=True, forks=True)
    gc.disable()
    try:
        _drop_in_a_cycle(turns.held(_count()))
        assert list(turns.held(_count())) == list(range(10))
    finally:
        gc.enable()


def test_paused_stream_keeps_its_turn() -> None:
    """A newcomer is refused, and what was begun goes on."""
    turns = Turns(wait=False, forks=True)
    stream = turns.held(_count())
    assert next(stream) == 0
    with pytest.raises(EngineBusy):
        next(turns.held(_count()))
    assert list(stream) == list(range(1, 10))


def test_patience_ends() -> None:
    """A wait of some seconds is refused after them."""
    turns = Turns(wait=0.1, forks=True)
    stream = turns.held(_count())
    next(stream)
    with pytest.raises(EngineBusy, match=r"within 0\.1 s"):
        next(turns.held(_count()))
    stream.close()
    assert next(turns.held(_count())) == 0
