"""A lock on one context: answers run one after the other, whatever threads ask for them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol, TypeVar, cast

from pyspec._lib import release_workers
from pyspec.errors import EngineBusy, EngineError

_Item = TypeVar("_Item")
_Made_co = TypeVar("_Made_co", covariant=True)
_Function = TypeVar("_Function", bound=Callable[..., Any])

OWN_WAIT_S = 5.0
"""How long a thread waits for an answer that it read last itself: most likely nobody reads that any more."""

_FIRST_LOOK_S = 0.05
"""How long another answer may pause before the garbage collector checks whether anybody can still read it."""

_HINT = "finish or close the answer in flight, call cancel(), or use one object per thread"


class _Work(Protocol[_Made_co]):
    """Makes items until it ends or is closed."""

    def __next__(self) -> _Made_co: ...
    def close(self) -> None: ...


class _Here(threading.local):
    """What this thread does: work on an answer, or, within that, run code of the caller's."""

    working = False
    calling = False


def _inside() -> EngineBusy:
    return EngineBusy("this call comes from inside an answer of the same model", _HINT)


class AnswerLock:
    """Held by one answer at a time; `wait` is as in `SpeculativeLlama`.

    An answer holds it from its first step to its end, even while nobody reads the answer. Of its steps, and of what frees the
    context, one runs at a time, whatever threads they run in. A thread that releases the lock keeps no workers, which would slow
    down the next thread: web frameworks answer each request, and even each piece of a stream, in any thread of a pool. forks:
    whether a child process may use it.
    """

    def __init__(self, wait: bool | float, *, forks: bool) -> None:
        self._wait = wait
        self._changed = threading.Condition()  # reentrant: `drop` is called by signal handlers
        self._holder: object | None = None
        self._reader = 0
        self._wanders = False
        self._step = threading.Lock()
        self._here = _Here()
        self._process = None if forks else os.getpid()

    def held(self, work: _Work[_Item]) -> Generator[_Item, None, None]:
        """Yield what `work` yields, holding the lock until it ends. Raises EngineBusy."""
        with self.taken() as me:
            try:
                while True:
                    with self.step(me):
                        try:
                            item = next(work)
                        except StopIteration:
                            return
                    yield item
            finally:
                with self.step(me, last=True):
                    work.close()

    @contextmanager
    def taken(self, *, keep_workers: bool = False) -> Iterator[object]:
        """Hold the lock inside `with`. Raises EngineBusy, or EngineError in a child of the process that loaded the model."""
        if self._process not in (None, os.getpid()):
            raise EngineError(
                "the model was loaded before this process was forked, and its threads and devices do not survive that",
                "load it in the process that uses it, or with n_threads=1 where there is no device",
            )
        if self._here.working:
            raise _inside()
        me = object()
        self._acquire(me)
        try:
            yield me
        finally:
            if not keep_workers:
                release_workers()
            with self._changed:
                if self._holder is me:
                    self._holder = None
                    self._changed.notify_all()

    def _acquire(self, me: object) -> None:
        """Wait as long as `wait` allows. Raises EngineBusy.

        When a client disconnects, a server drops the stream together with the exception that ended it. Traceback and stream refer
        to each other, and an idle process may never collect them. So this calls the collector, soon at first and then ever more
        rarely.
        """
        limit = self._time_limit()
        end, look = (None if limit is None else monotonic() + limit), _FIRST_LOOK_S
        while True:
            with self._changed:
                left = look if end is None else min(look, max(0.0, end - monotonic()))
                if self._changed.wait_for(lambda: self._holder is None, left):
                    self._holder, self._reader = me, threading.get_ident()
                    return
                paused = not self._step.locked()
            if end is not None and monotonic() >= end:
                waited = "" if isinstance(self._wait, bool) else f" after {self._wait} s"
                raise EngineBusy(f"another answer is still in flight{waited}", _HINT)
            if paused:
                gc.collect()
            look *= 2

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Guard one call on the context, from an answer that holds the lock or from anybody else.

        Raises EngineBusy, also for code of the caller's that runs inside an answer: it would change what the answer stands on.
        """
        if self._here.calling:
            raise _inside()
        if self._here.working:
            yield
            return
        # a program of one thread may decode token by token
        with self.taken(keep_workers=threading.active_count() == 1) as me, self.step(me):
            yield

    @contextmanager
    def step(self, me: object, *, last: bool = False) -> Iterator[None]:
        """Guard the work between two yields of an answer; a dropped answer goes on if nobody else took the lock.

        last: guard the answer's end. Where another answer has the lock, or another thread frees the context, a step raises
        EngineBusy, and an end runs with `holds` False.
        """
        outer, self._here.working = self._here.working, True
        holds = self._enter(me)
        try:
            if not (holds or last):
                raise EngineBusy("another answer was begun on this model, or it is closed", _HINT)
            self._here.working = holds
            yield
        finally:
            if holds:
                if self._wanders:
                    release_workers()
                self._step.release()
            self._here.working = outer

    def _enter(self, me: object) -> bool:
        """Begin a step, unless another answer has the lock or the context is being freed."""
        with self._changed:
            if self._holder not in (None, me) or not self._step.acquire(blocking=False):
                return False
            here = threading.get_ident()
            self._wanders |= self._holder is me and self._reader != here
            self._holder, self._reader = me, here
            return True

    @property
    def holds(self) -> bool:
        """Whether this thread works on an answer that has the context."""
        return self._here.working

    @contextmanager
    def freeing(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Keep steps out inside `with`, where the context is freed. `cancel` is called until a running one has ended.

        Raises EngineBusy inside an answer, or inside another such `with` of this thread: both would wait for themselves.
        """
        if self._here.working:
            raise _inside()
        while not self._step.acquire(timeout=_FIRST_LOOK_S):
            cancel()  # again: an answer that begins clears the mark
        self._here.working = True
        try:
            yield
        finally:
            self._here.working = False
            self._step.release()

    def lent(self, function: _Function) -> _Function:
        """Return a caller's function as one that may ask nothing of this object while it runs in an answer."""

        def call(*args: Any, **kwargs: Any) -> Any:
            outer, self._here.calling = self._here.calling, True
            try:
                return function(*args, **kwargs)
            finally:
                self._here.calling = outer

        return cast("_Function", call)

    def drop(self) -> None:
        """Release the lock of an answer that nobody reads any more."""
        with self._changed:
            if not self._step.locked():
                self._holder = None
                self._changed.notify_all()

    def _time_limit(self) -> float | None:
        own = OWN_WAIT_S if self._reader == threading.get_ident() else None
        if self._wait is True:
            return own
        return 0.0 if self._wait is False else min(self._wait, own or self._wait)
