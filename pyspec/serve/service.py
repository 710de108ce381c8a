"""What stands between HTTP and the models: the thread that owns them, what is asked of it, and what answers become.

HTTP runs in an asyncio loop, llama.cpp in one thread. What a round brought wakes the loop once, whoever it is for; an
answer waits in its request until its reader takes it, so a slow reader holds up nobody. What waits is bounded by the answers'
length, and their number by `ServerSettings.queue`.
"""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import logging
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pyspec.batch import bodies
from pyspec.batch.jobs import Delta
from pyspec.batch.legacy import as_function_call
from pyspec.batch.records import CHAT, failed
from pyspec.errors import AnswerFailed, Cancelled, EngineError, OptionError, TooManyRequests
from pyspec.noise import derive_seed
from pyspec.options import Speculation
from pyspec.rules import Margin, Strict
from pyspec.sampling import check_grammar
from pyspec.text.parser import joined
from pyspec.text.tokenizer import piece_reader

if TYPE_CHECKING:
    from pyspec.batch.jobs import Job, TokenLogprobs
    from pyspec.batch.records import Record, Result
    from pyspec.batch.run import Batch
    from pyspec.text.parts import AnswerPart
    from pyspec.tokens import Token

    Answered = Callable[[Result, dict[str, float]], None]

log = logging.getLogger("pyspec")

_STOP_S = 0.2

MAX_N = 16
"""Most choices of one request."""

LIGHT = 1 << 15
"""Bytes of a request that is prepared at once; a larger one, or one with a grammar or a schema, waits for its turn."""

MOST_HEAVY = 32
"""Requests that are prepared or wait for that turn."""


@dataclass(frozen=True)
class ServerSettings:
    """How the server behaves.

    queue: answers that may wait beyond those that run; more are refused with 429. max_body: bytes of a request.
    hosts: names by which the server may be called, None for any. origins: pages of others that may use it.
    """

    model: str
    api_key: str | None = None
    queue: int = 256
    max_body: int = 1 << 20
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)


class Service:
    """Understands requests, and runs a `Batch` for them in a thread of its own. answered: hears of the end of each answer."""

    def __init__(self, batch: Batch, serving: ServerSettings, answered: Answered) -> None:
        self.batch, self.serving, self.answered = batch, serving, answered
        self.piece = piece_reader(batch.vocab)
        self._most = batch.parallel + serving.queue
        self._count = count(1)
        self._preparing, self._heavy = 0, ThreadPoolExecutor(2, "pyspec-heavy")
        self._loop: asyncio.AbstractEventLoop
        self._open: dict[int, tuple[Job, Callable[[Delta], None]]] = {}
        self._deltas: deque[tuple[int, Delta]] = deque()
        self._flush_due = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pyspec-engine", daemon=True)

    # -- in the loop's thread ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work; the loop that runs now hears of the answers."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def ask(self, path: str, data: bytes) -> PendingRequest:
        """Understand a request and begin its answers. Raises InputError, TooManyRequests and the like."""
        body = bodies.read_body(path, data)
        name = uuid.uuid4().hex[:24]
        n = _choices(body)
        if body.n_prompts * n > self._most:
            raise TooManyRequests(f"{body.n_prompts * n} answers are asked for at once")
        if len(data) > LIGHT or body.shaped:
            jobs = await self._heavily(self._checked, body, name)
        else:
            jobs = await asyncio.to_thread(self._jobs, body, name)
        if len(self._open) + len(jobs) > self._most:
            raise TooManyRequests("too many requests are waiting", "try again in a moment")
        prefix = "chatcmpl" if body.form == CHAT else "cmpl"
        asked = PendingRequest(self, body, jobs, f"{prefix}-{name}")
        for i, job in enumerate(jobs):
            self._open[job.index] = job, partial(asked.put, i)
            job.listener = partial(self._post, job.index)
            self.batch.submit_job(job)
        self._wake.set()
        return asked

    async def _heavily(self, work: Callable[..., list[Job]], *given: Any) -> list[Job]:
        """Do what may take long, few at once: what others ask for does not wait for it. Raises TooManyRequests."""
        if self._preparing >= MOST_HEAVY:
            raise TooManyRequests("too many large requests are waiting", "try again in a moment")
        self._preparing += 1
        try:
            return await self._loop.run_in_executor(self._heavy, partial(work, *given))
        finally:
            self._preparing -= 1

    def drop(self, asked: PendingRequest) -> None:
        """Nobody reads these answers any more."""
        for job in asked.jobs:
            if job.index in self._open:
                job.cancelled = True
                self._wake.set()

    async def stop(self) -> None:
        """End what runs, and the thread."""
        self._stopping.set()
        while self._thread.is_alive():  # one that is about to begin a run clears the flag
            self.batch.cancel()
            self._wake.set()
            await asyncio.to_thread(self._thread.join, _STOP_S)
        self._heavy.shutdown(wait=False, cancel_futures=True)

    def _flush(self) -> None:
        self._flush_due = False  # before the rest: what comes now wakes the loop again
        while self._deltas:
            index, delta = self._deltas.popleft()
            if index in self._open:
                self._open[index][1](delta)
                if delta.result is not None:
                    del self._open[index]

    # -- in the engine's thread --------------------------------------------------------------------

    def _post(self, index: int, delta: Delta) -> None:
        self._deltas.append((index, delta))
        if not self._flush_due:
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
        failure = error if isinstance(error, EngineError) else EngineError(str(error) or "failed")
        for job, _ in list(self._open.values()):
            self._post(job.index, Delta(result=failed(job.index, job.record, failure)))

    # -- in any thread -----------------------------------------------------------------------------

    def _checked(self, body: Any, name: str) -> list[Job]:
        """Jobs whose grammar is known to be usable. Raises InputError."""
        jobs = self._jobs(body, name)
        if jobs[0].options.grammar is not None:
            check_grammar(jobs[0].options.grammar, self.batch.target)
        return jobs

    def _jobs(self, body: Any, name: str) -> list[Job]:
        alternatives = body.alternatives
        if alternatives is not None and not 0 <= alternatives <= 20:
            raise OptionError(f"{alternatives} likeliest tokens were asked for", "use 0 to 20")
        records = bodies.records_of(body, name)
        return [self._job(record, body, i) for record in records for i in range(_choices(body))]

    def _job(self, record: Record, body: Any, i: int) -> Job:
        seed = random.getrandbits(32) if record.seed is None else record.seed
        asked = replace(record, seed=derive_seed(seed, i) if i else seed, id=f"{record.id}-{i}")
        job = self.batch.jobs.job(next(self._count), asked)
        job.alternatives = body.alternatives
        if body.alternatives is not None:
            job.options = dataclasses.replace(job.options, keep_rows=True)
        if body.speculation is not None:
            own = job.options.speculation
            job.options = dataclasses.replace(
                job.options, speculation=_speculation(body.speculation, own)
            )
        return job


def _choices(body: bodies.Body) -> int:
    """How many answers each prompt is to have. Raises OptionError."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_N:
        raise OptionError(f"n is {n}", f"use 1 to {MAX_N}")
    return n


def _speculation(asked: bodies.SpeculationBody, own: Speculation) -> Speculation:
    """What a request asks for, `own` where it does not say. Raises OptionError."""
    names = ("theta", "gap", "budget")
    given = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    rule = own.verification
    if asked.verify is not None:
        rule = Strict() if asked.verify == "strict" else Margin(**given)
    return dataclasses.replace(
        own, enabled=asked.enabled is not False, verification=rule, draft_max=asked.draft_max
    )


# -- what answers become -----------------------------------------------------------------------------------------------


@dataclass
class PendingRequest:
    """A request that was understood, its answers in flight, and what its reader has not taken of them yet.

    For the loop's thread only. created: in seconds since 1970.
    """

    service: Service
    body: bodies.ChatBody | bodies.CompletionBody
    jobs: list[Job]
    name: str
    begun: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))
    _deltas: dict[int, list[Delta]] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_chat(self) -> bool:
        """Whether a chat goes on, and no text."""
        return self.body.form == CHAT

    @property
    def older(self) -> bool:
        """Whether it asked for functions, which came before tools."""
        return getattr(self.body, "functions", None) is not None

    def frame(self, choices: list[dict[str, Any]], *, chunk: bool = False) -> dict[str, Any]:
        """A response's body around its choices, or the body of a chunk of it."""
        model = self.service.serving.model
        body = bodies.body_of(self.body.form, self.name, model, self.created, choices)
        return {**body, "object": "chat.completion.chunk"} if chunk and self.is_chat else body

    @property
    def details(self) -> bool:
        """Whether each token's source and gap were asked for."""
        return self.body.speculation is not None and self.body.speculation.tokens

    def choices(self) -> list[Choice]:
        """Its answers, of which nothing has come yet."""
        return [Choice(self, i) for i in range(len(self.jobs))]

    def put(self, index: int, delta: Delta) -> None:
        """Add what a round brought to the answer at this place."""
        self._deltas.setdefault(index, []).append(delta)
        self._arrived.set()

    async def updates(self, choices: Sequence[Choice]) -> AsyncIterator[Choice]:
        """Each of its choices as more of it has come, until all have ended. Raises AnswerFailed."""
        while not all(choice.result for choice in choices):
            await self._arrived.wait()
            self._arrived.clear()
            taken, self._deltas = self._deltas, {}
            for index, deltas in taken.items():
                choices[index].take(deltas)
                yield choices[index]


class Choice:
    """One answer of a request as it grows.

    parts, likely, details: what has come and was not given on: parts, log-probabilities and sources of its tokens.
    block: at the end, what speculation did.
    """

    def __init__(self, asked: PendingRequest, index: int) -> None:
        self.asked, self.index, self._piece = asked, index, asked.service.piece
        self.result: Any = None  # the `Result`, at the end
        self.block: dict[str, Any] = {}
        self._parts: list[AnswerPart] = []
        self._likely: list[tuple[Token, TokenLogprobs]] = []
        self._details: list[dict[str, Any]] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = 0.0

    def take(self, deltas: Sequence[Delta]) -> None:
        """Add what rounds brought. Raises AnswerFailed."""
        self._first = self._first or time.perf_counter()
        for delta in deltas:
            self._parts += delta.parts
            self._likely += zip(delta.tokens, delta.likely)
            if self.asked.details:
                self._details += map(self._detail, delta.tokens)
        if deltas[-1].result is not None:
            self._end(deltas[-1].result)

    def _detail(self, token: Token) -> dict[str, Any]:
        text = self._decoder.decode(self._piece(token.id))
        made = {"text": text, "source": token.source.label, "gap": round(token.gap, 4)}
        if token.preferred != token.id:
            made["preferred"] = self._piece(token.preferred).decode("utf-8", "replace")
        return made

    def _end(self, result: Result) -> None:
        if result.error is not None:
            raise AnswerFailed(result.error.message, result.error.type)
        end, begun = time.perf_counter(), self.asked.begun
        n, seconds = result.usage.completion_tokens, max(1e-6, end - self._first)
        timings = {
            "first_token_ms": round(1e3 * (self._first - begun), 2),
            "total_ms": round(1e3 * (end - begun), 2),
            "tokens_per_second": round(max(0, n - 1) / seconds, 2),
        }
        self.result = result
        self.block = {**result.speculation, **self.asked.service.serving.about, "timings": timings}
        self.asked.service.answered(result, timings)

    def whole(self) -> dict[str, Any]:
        """The answer as one of a body's choices."""
        asked = self.asked
        shown = bodies.choice_of(asked.body.form, self.index, self.result)
        if asked.body.alternatives is not None:
            shown["logprobs"] = bodies.logprobs_of(asked.body.form, self._piece, self._likely)
        if self._details:
            self.block["tokens"] = self._details
        return as_function_call(shown) if asked.older else shown

    # -- streamed ----------------------------------------------------------------------------------

    def chunks(self) -> Iterator[dict[str, Any]]:
        """What has come, and at the end why it ended."""
        parts, self._parts = self._parts, []
        deltas = list(filter(None, (part.delta() for part in joined(parts))))
        if not deltas and (self._likely or self._details):
            deltas = [{"content": ""}]
        for delta in deltas:
            yield self.chunk(delta)
        if self.result is not None:
            yield self._last(bodies.openai_reason(self.result.finish_reason))

    def _last(self, reason: str | None) -> dict[str, Any]:
        chunk = {**self.chunk({}, reason), "speculation": self.block}
        if self.result.reasoning_cut:
            chunk["choices"][0]["reasoning_cut"] = True
        return chunk

    def chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        """What goes to the reader at once."""
        asked, likely, details = self.asked, self._likely, self._details
        self._likely, self._details = [], []
        choice: dict[str, Any] = {"index": self.index, "finish_reason": reason, "logprobs": None}
        choice |= {"delta": delta} if asked.is_chat else {"text": delta.get("content", "")}
        if likely:
            choice["logprobs"] = bodies.logprobs_of(asked.body.form, self._piece, likely)
        choice = as_function_call(choice) if asked.older else choice
        body = asked.frame([choice], chunk=True)
        return {**body, "tokens": details} if details else body
