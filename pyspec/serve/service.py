"""The service of one model: the engine's thread, its requests, and the delivery of their answers.

HTTP runs in an asyncio loop, llama.cpp in one thread. The end of a round wakes the loop once, with new tokens of any number of
requests. They wait in their request until its reader takes them, so that a slow reader holds up nobody. An answer's length bounds
what waits for one reader, and `ServerSettings.queue` the number of answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

from msgspec.structs import replace

from pyspec.batch.run import Batch
from pyspec.engine.answer import Answer
from pyspec.errors import Cancelled, EngineError, InputError, ShuttingDown, TooManyRequests
from pyspec.grammar.masks import check_constraint
from pyspec.grammar.tokens import ByteVocabulary
from pyspec.requests import bodies
from pyspec.requests.records import Record, failed
from pyspec.sampling.options import derive_seed
from pyspec.serve import ServerSettings
from pyspec.serve.interface import AnswerListener, PendingRequest
from pyspec.text.parts import Piece, RecordResult
from pyspec.vocab import piece_reader

log = logging.getLogger("pyspec")

_JOIN_S = 0.2
_STOP_S = 30.0  # the thread's time to end after `cancel`: llama.cpp finishes a context first
_CUT_S = 5.0  # the time that cancelled answers have to report their end
LIGHT = 1 << 15  # bytes of requests that are prepared at once; larger ones have their own queue
_AT_ONCE = 2  # threads for large requests, which must not delay others


def refuse_if(draining: bool) -> None:
    """Raise ShuttingDown where no request is taken any more."""
    if draining:
        raise ShuttingDown("the server is shutting down", "try again in a moment")


class Service:
    """Reads requests and runs a `Batch` for them in its own thread. answered: is called at the end of each answer."""

    def __init__(self, batch: Batch, serving: ServerSettings, answered: AnswerListener) -> None:
        self.batch, self.serving, self.answered = batch, serving, answered
        self.piece = piece_reader(batch.vocab)
        # built now: it holds the interpreter's lock, and would stall every stream later
        ByteVocabulary.of(batch.target)
        self._most = batch.parallel + serving.queue
        self._count = count(1)
        self._preparing = 0
        self._large = ThreadPoolExecutor(_AT_ONCE, "pyspec-large")
        self._loop: asyncio.AbstractEventLoop
        self._open: dict[int, tuple[Answer, Callable[[Piece | RecordResult], None]]] = {}
        self._brought: deque[tuple[int, Piece | RecordResult]] = deque()
        self._flush_due = False
        self.draining = False  # whether the server is shutting down, and refuses new requests
        self.beaten = time.monotonic()  # when the last round ended, or the first may have begun
        self._idle = asyncio.Event()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pyspec-engine", daemon=True)

    # -- in the loop's thread ----------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine's thread. Answers are delivered to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def ask(
        self, prefix: str, body: bodies.Body, size: int, holder: str = ""
    ) -> PendingRequest:
        """Read a request of `size` bytes, and submit its answers. holder: the client's key. Raises InputError and the like."""
        refuse_if(self.draining)
        name = uuid.uuid4().hex[:24]
        answers = await self._understood(body, name, size)
        refuse_if(self.draining)
        self._room_for(len(answers))
        full = f"{prefix}{name}"
        pending = PendingRequest(self.serving, self.piece, self.answered, body, answers, full)
        if not self._open:
            self.beaten = time.monotonic()
        for i, answer in enumerate(answers):
            self._open[answer.index] = answer, partial(pending.put, i)
            answer.listener = partial(self._post, answer.index)
            answer.owner = f"{holder} {body.owner}" if holder else body.owner
            self.batch.submit(answer)
        self._wake.set()
        return pending

    async def _understood(self, body: bodies.Body, name: str, size: int) -> list[Answer]:
        """The answers that a request wants, not yet begun. size: its bytes. Raises InputError, TooManyRequests and the like."""
        n = body.n_prompts * body.answers
        if n > self._most:
            raise InputError(f"{n} answers are asked for at once", f"ask for {self._most}")
        self._room_for(self._preparing + 1)
        self._preparing += 1
        pool = self._large if size > LIGHT else None  # the loop's own
        try:
            return await self._loop.run_in_executor(pool, self._answers, body, name)
        finally:
            self._preparing -= 1

    def _room_for(self, n: int) -> None:
        """Raise TooManyRequests where n more answers exceed the limit."""
        if len(self._open) + n > self._most:
            raise TooManyRequests("too many requests are waiting", "try again in a moment")

    def drop(self, pending: PendingRequest) -> None:
        """Cancel answers whose reader has gone."""
        for answer in pending.answers:
            if answer.index in self._open:
                answer.cancelled = True
                self._wake.set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def fault(self) -> str | None:
        """A fault that only a restart repairs: the engine's thread "failed", or is "stuck" in a round."""
        if not self.alive:
            return "failed"
        late = time.monotonic() - self.beaten > self.serving.stall
        return "stuck" if self._open and late else None

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and cancel after so many seconds what still runs. Answers of a hanging engine fail."""
        self.draining = True
        await self._until_idle(seconds)
        for answer, _ in self._open.values():
            answer.cancelled = True
        self._wake.set()
        await self._until_idle(_CUT_S)
        self._fail_all(Cancelled("the server ends, and the answer was not finished"))
        self._flush()

    async def _until_idle(self, seconds: float) -> None:
        self._idle.clear()
        if self._open:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), seconds)

    async def stop(self) -> bool:
        """Cancel all answers and end the thread. False for one that hangs: it uses the batch, which must not be closed."""
        self.draining = True
        self._stopping.set()
        end = time.monotonic() + _STOP_S
        while self.alive and time.monotonic() < end:
            self.batch.cancel()  # repeated, since a thread that starts a run clears the flag
            self._wake.set()
            await asyncio.to_thread(self._thread.join, _JOIN_S)
        self._large.shutdown(wait=False, cancel_futures=True)
        if self.alive:
            log.error("the engine of %s did not stop", self.serving.model)
        return not self.alive

    def _flush(self) -> None:
        self._flush_due = False  # first: pieces that arrive from here on wake the loop again
        while self._brought:
            index, brought = self._brought.popleft()
            if index in self._open:
                self._open[index][1](brought)
                if isinstance(brought, RecordResult):
                    del self._open[index]
        if not self._open:
            self._idle.set()

    # -- in the engine's thread --------------------------------------------------------------------

    def _post(self, index: int, brought: Piece | RecordResult) -> None:
        self._brought.append((index, brought))

    def _wake_loop(self) -> None:
        """Wake the loop once a round: for each piece, both threads would contend for the interpreter's lock."""
        self.beaten = time.monotonic()
        if self._brought and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon_threadsafe(self._flush)

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                for _ in self.batch.stream(self._wake_loop):
                    pass
            except Cancelled as error:
                self._fail_all(error)
            except Exception as error:  # a bug: running requests fail, the server goes on
                log.exception("the engine failed")
                self._fail_all(error)
            self._wake_loop()

    def _fail_all(self, error: Exception) -> None:
        failure = error if isinstance(error, EngineError) else EngineError(str(error) or "failed")
        for answer, _ in list(self._open.values()):
            self._post(answer.index, failed(answer.index, answer.record, failure))

    # -- in any thread -----------------------------------------------------------------------------

    def _answers(self, body: bodies.Body, name: str) -> list[Answer]:
        """A request's answers, their grammar checked. Raises InputError."""
        wanted = [each for each in bodies.records_of(body) for _ in range(body.answers)]
        answers = [self._answer(record, i, f"{name}-{i}") for i, record in enumerate(wanted)]
        if (grammar := answers[0].options.grammar) is not None:
            check_constraint(grammar, self.batch.target)
        return answers

    def _answer(self, record: Record, i: int, name: str) -> Answer:
        """Answer i of a request. Answers have different noise, though the request or the server names one seed."""
        ours = self.batch.settings.sampling
        asked = ours.seed if record.seed is None else record.seed
        seed = random.getrandbits(32) if record.seed is None and ours.unseeded else asked
        seeded = replace(record, seed=derive_seed(seed, i) if i else seed, id=name)
        return self.batch.maker.answer(next(self._count), seeded)
