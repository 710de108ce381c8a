"""The thread that owns the models, and how requests get to it and answers away from it.

HTTP runs in an asyncio loop, llama.cpp in one thread. What a round brought wakes the loop once, whoever it is for; an
answer waits in its `Inbox` until its reader takes it, so a slow reader holds up nobody. An inbox is bounded by its
answer's length, and the number of answers by `most`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from pyspec.batch.jobs import Delta
from pyspec.batch.records import failed
from pyspec.errors import Cancelled, EngineError

if TYPE_CHECKING:
    from pyspec.batch.jobs import Job
    from pyspec.batch.run import Batch

log = logging.getLogger("pyspec")

_STOP_S = 0.2


class Inbox:
    """What an answer's reader has not taken yet; for the loop's thread only."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.finished = False
        self._deltas: list[Delta] = []
        self._arrived = asyncio.Event()

    def put(self, delta: Delta) -> None:
        """Add what a round brought."""
        self._deltas.append(delta)
        self.finished = self.finished or delta.result is not None
        self._arrived.set()

    async def take(self) -> list[Delta]:
        """All that has arrived since, at least one; the last of all has the result."""
        while not self._deltas:
            self._arrived.clear()
            await self._arrived.wait()
        taken, self._deltas = self._deltas, []
        return taken


class Worker:
    """Runs a `Batch` in a thread of its own. most: answers in flight, waiting ones included."""

    def __init__(self, batch: Batch, most: int) -> None:
        self.batch, self.most = batch, most
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[Inbox] = set()
        self._deltas: deque[tuple[Inbox, Delta]] = deque()
        self._flush_due = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pyspec-engine", daemon=True)

    # -- in the loop's thread ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work; the loop that runs now hears of the answers."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def room(self, n: int) -> bool:
        """Whether n more answers may be asked for."""
        return len(self._open) + n <= self.most

    def submit(self, job: Job) -> Inbox:
        """Ask for an answer."""
        inbox = Inbox(job)
        job.listener = lambda delta: self._post(inbox, delta)
        self._open.add(inbox)
        self.batch.submit_job(job)
        self._wake.set()
        return inbox

    def cancel(self, inbox: Inbox) -> None:
        """Nobody waits for this answer any more."""
        if not inbox.finished:
            inbox.job.cancelled = True
            self._wake.set()

    async def stop(self) -> None:
        """End what runs, and the thread."""
        self._stopping.set()
        while self._thread.is_alive():  # one that is about to begin a run clears the flag
            self.batch.cancel()
            self._wake.set()
            await asyncio.to_thread(self._thread.join, _STOP_S)

    def _flush(self) -> None:
        self._flush_due = False  # before the rest: what comes now wakes the loop again
        while self._deltas:
            inbox, delta = self._deltas.popleft()
            if delta.result is not None:
                self._open.discard(inbox)
            inbox.put(delta)

    # -- in the engine's thread --------------------------------------------------------------------

    def _post(self, inbox: Inbox, delta: Delta) -> None:
        self._deltas.append((inbox, delta))
        if not self._flush_due and self._loop is not None:
            self._flush_due = True
            self._loop.call_soon_threadsafe(self._flush)

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                for _ in self.batch.stream():
                    pass
            except Cancelled as error:
                self._fail_all(error)
            except Exception as error:  # a fault of ours: those in flight fail, the server goes on
                log.exception("the engine failed")
                self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        for inbox in list(self._open):
            job = inbox.job
            failure = (
                error if isinstance(error, EngineError) else EngineError(str(error) or "failed")
            )
            self._post(inbox, Delta(result=failed(job.index, job.record, failure)))
