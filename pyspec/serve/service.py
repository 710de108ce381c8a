"""What stands between HTTP and the models: the thread that owns them, what is asked of it, and what Prometheus is told.

HTTP runs in an asyncio loop, llama.cpp in one thread. What a round brought wakes the loop once, whoever it is for; an
answer waits in its `Inbox` until its reader takes it, so a slow reader holds up nobody. An inbox is bounded by its
answer's length, and the number of answers by `most`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pyspec.batch.bodies import read_body
from pyspec.batch.jobs import Delta
from pyspec.batch.records import failed
from pyspec.errors import Cancelled, EngineError, OptionError, TooManyRequests
from pyspec.rules import Margin, Strict, Verification
from pyspec.serve.answers import Inbox, PendingRequest
from pyspec.text import piece_reader

if TYPE_CHECKING:
    from pyspec.batch.jobs import Job
    from pyspec.batch.records import Record, Result
    from pyspec.batch.run import Batch

log = logging.getLogger("pyspec")

_STOP_S = 0.2

MAX_N = 16
"""Most choices of one request."""


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


# -- what is counted ---------------------------------------------------------------------------------------------------


_COUNTED = {
    "drafted": "Tokens drafted.",
    "verified": "Drafted tokens that the target checked.",
    "accepted": "Drafted tokens that were accepted, relaxed ones included.",
    "relaxed": "Runner-up tokens that the margin rule accepted.",
    "relaxed_nats": "Sum of the gaps of relaxed tokens, nats.",
}
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of finished answers, and gauges of what goes on."""

    def __init__(self, batch: Batch) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"pyspec_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"pyspec_{name}_seconds", text, buckets=_BUCKETS, registry=registry)

        self._requests = counter("requests", "Requests that were begun.", ["kind"])
        self._answers = counter("answers", "Answers by how they ended.", ["reason"])
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._tokens = counter("tokens", "Tokens of answers.")
        self._counts = {
            name: counter(f"{name}_tokens" if name != "relaxed_nats" else name, text)
            for name, text in _COUNTED.items()
        }
        self._first = histogram("first_token", "Until the first token.")
        self._whole = histogram("answer", "Until the last token.")
        now: dict[str, tuple[str, Callable[[], float]]] = {
            "running": ("Answers that run.", lambda: batch.load[0]),
            "waiting": ("Answers that wait for a sequence.", lambda: batch.load[1]),
            "sequences": ("Answers that may run at once.", lambda: batch.parallel),
            "speed_against_plain": (
                "Times as fast as without drafts by the measured cost curve; 0 where nothing was drafted.",
                lambda: batch.speed,
            ),
        }
        for name, (text, value) in now.items():
            Gauge(f"pyspec_{name}", text, registry=registry).set_function(value)

    def asked(self, kind: str) -> None:
        """A request was begun."""
        self._requests.labels(kind).inc()

    def answered(self, result: Result, timings: dict[str, float]) -> None:
        """An answer ended."""
        self._answers.labels(result.finish_reason or "failed").inc()
        self._prompt.inc(result.usage.prompt_tokens)
        self._tokens.inc(result.usage.completion_tokens)
        for name, metric in self._counts.items():
            metric.inc(result.speculation.get(name, 0))
        self._first.observe(1e-3 * timings["first_token_ms"])
        self._whole.observe(1e-3 * timings["total_ms"])

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Serving:
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
    """What the routes share."""

    def __init__(self, batch: Batch, serving: Serving) -> None:
        self.batch, self.serving = batch, serving
        self.worker = Worker(batch, batch.parallel + serving.queue)
        self.metrics = Metrics(batch)
        self.piece = piece_reader(batch.vocab)
        self._count = count(1)

    async def ask(self, path: str, data: bytes) -> PendingRequest:
        """Understand a request and begin its answers. Raises InputError, TooManyRequests and the like."""
        body = read_body(path, data)
        name = uuid.uuid4().hex[:24]
        jobs = await asyncio.to_thread(self._jobs, body, name)
        if not self.worker.room(len(jobs)):
            raise TooManyRequests("too many requests are waiting", "try again in a moment")
        prefix = "chatcmpl" if body.form == "chat" else "cmpl"
        inboxes = [self.worker.submit(job) for job in jobs]
        serving = self.serving
        return PendingRequest(
            body,
            inboxes,
            f"{prefix}-{name}",
            serving.model,
            self.piece,
            serving.about,
            self.metrics.answered,
        )

    def _jobs(self, body: Any, name: str) -> list[Job]:
        n = 1 if body.n is None else body.n
        if not 1 <= n <= MAX_N:
            raise OptionError(f"n is {n}", f"use 1 to {MAX_N}")
        alternatives = body.alternatives
        if alternatives is not None and not 0 <= alternatives <= 20:
            raise OptionError(f"{alternatives} likeliest tokens were asked for", "use 0 to 20")
        first = body.record(name)
        prompts = [first] if body.form == "chat" else [_with(first, p) for p in body.prompts()]
        jobs = [self._job(record, body, i) for record in prompts for i in range(n)]
        if len(jobs) > self.worker.most:
            raise TooManyRequests(f"{len(jobs)} answers are asked for at once")
        return jobs

    def _job(self, record: Record, body: Any, i: int) -> Job:
        seed = random.getrandbits(32) if record.seed is None else record.seed + i
        asked = _with(record, {"seed": seed & 0xFFFFFFFF, "id": f"{record.id}-{i}"})
        if asked.max_tokens is None:
            asked.max_tokens = self.batch.settings.max_tokens
        job = self.batch.jobs.job(next(self._count), asked)
        job.alternatives = body.alternatives
        return _ruled(job, body.speculation or {})

    def drop(self, asked: PendingRequest) -> None:
        """Nobody reads these answers any more."""
        for inbox in asked.inboxes:
            self.worker.cancel(inbox)


def _with(record: Record, changes: dict[str, Any]) -> Record:
    return msgspec.structs.replace(record, **changes)


def _ruled(job: Job, asked: dict[str, Any]) -> Job:
    """The job under the rule that its request asks for."""
    verify = asked.get("verify")
    if verify not in (None, "strict", "margin"):
        raise OptionError(f"speculation.verify is {verify!r}", "use strict or margin")
    if asked.get("enabled") is False:
        job.draft_max = 0
    if verify is None or job.grammar is not None or job.sampling.shaped:
        return job
    names = ("theta", "gap", "budget")
    given = {name: asked[name] for name in names if asked.get(name) is not None}
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in given.values()):
        raise OptionError("theta, gap and budget are numbers")
    rule: Verification = Strict() if verify == "strict" else Margin(**given)
    return replace(job, rule=rule)
