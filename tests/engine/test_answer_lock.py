"""One answer at a time; a stream that nobody can read any more releases the lock."""

import gc
import threading

import pytest
from helpers.answers import GREEDY, ask
from helpers.devices import LAYERS
from helpers.forked import told

from pyspec.engine.answer_lock import AnswerLock
from pyspec.errors import EngineBusy, EngineError


def _count():
    yield from range(10)


def _drop_in_a_cycle(stream):
    """What a server does with a stream whose client left: the exception's traceback holds it, and it the exception."""
    try:
        next(stream)
        raise OSError("client left")
    except OSError as error:
        held = [error, stream]
        held.append(held)


def test_dropped_stream_gives_its_turn_to_who_waits():
    """Also where only the garbage collector can find that nobody reads it, and nothing else makes it run."""
    lock = AnswerLock(wait=True, forks=True)
    gc.disable()
    try:
        _drop_in_a_cycle(lock.held(_count()))
        assert list(lock.held(_count())) == list(range(10))
    finally:
        gc.enable()


def test_paused_stream_keeps_its_turn_and_patience_ends():
    for wait, said in ((False, "busy|answer"), (0.1, r"after 0\.1 s")):
        lock = AnswerLock(wait=wait, forks=True)
        stream = lock.held(_count())
        assert next(stream) == 0
        with pytest.raises(EngineBusy, match=said):
            next(lock.held(_count()))
        assert list(stream) == list(range(1, 10))
        assert next(lock.held(_count())) == 0


def test_the_context_is_freed_between_steps_and_no_step_begins_meanwhile():
    """Another thread that closes the model cancels the round at work, and waits until it is over."""
    lock, freed = AnswerLock(wait=False, forks=True), threading.Event()
    cancelled = threading.Event()

    def free():
        with lock.freeing(cancelled.set):
            freed.set()

    def answer():
        thread.start()
        assert cancelled.wait(30)
        yield int(freed.is_set())
        yield 2

    thread = threading.Thread(target=free)
    stream = lock.held(answer())
    assert next(stream) == 0
    thread.join()
    with lock.freeing(cancelled.clear), pytest.raises(EngineBusy):
        next(stream)


def test_an_answer_that_lost_the_lock_ends_without_the_context():
    """It was dropped, and another one runs; what it closes must not touch what is that one's now."""
    lock, held = AnswerLock(wait=False, forks=True), []

    def answer():
        try:
            yield from range(10)
        finally:
            held.append(lock.holds)

    first = lock.held(answer())
    next(first)
    lock.drop()
    second = lock.held(answer())
    next(second)
    first.close()
    assert (held, next(second)) == ([False], 1)
    second.close()
    assert held == [False, True]


@pytest.mark.parametrize("begin", [
    lambda llm: llm.steps([3, 4, 5], GREEDY, max_tokens=40),
    lambda llm: llm.generate([3, 4, 5], temp=0.0),
    lambda llm: llm.create_completion([3, 4, 5], max_tokens=40, temperature=0.0, stream=True),
], ids=["rounds", "ids", "text"])  # fmt: skip
def test_a_dropped_stream_that_is_closed_late_changes_nothing(open_llama, tiny_target, begin):
    """What the fields say and the last block are of the answer that came after it."""
    llm = open_llama(tiny_target)
    first = begin(llm)
    next(first)
    llm.cancel()
    ids, block = ask(llm, [9, 8, 7], 5).ids, llm.last_speculation
    first.close()
    assert llm.last_speculation is block
    assert llm.input_ids[: llm.n_tokens].tolist() == [9, 8, 7, *ids[:-1]]


def outcome(llm):
    try:
        llm.create_completion("abc", max_tokens=4)
    except EngineError as error:
        return type(error).__name__
    return "answered"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_told(open_llama, tiny_target):
    """Its threads are not there: a decode would wait for them for ever. With one thread there is nothing to wait for.

    A device's connection is the parent's: one thread is no help there.
    """
    alone = "EngineError" if LAYERS else "answered"
    for threads, wanted in ((2, "EngineError"), (1, alone)):
        llm = open_llama(tiny_target, n_threads=threads, n_threads_batch=threads)
        llm.create_completion("abc", max_tokens=4)
        assert told(outcome, llm) == wanted
