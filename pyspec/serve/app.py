"""The HTTP application: routes, limits, and errors in the shape that OpenAI's clients expect."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pyspec.batch.bodies import read_body
from pyspec.errors import (
    AnswerFailed,
    Cancelled,
    ContextOverflow,
    EngineBusy,
    EngineError,
    InputError,
    OptionError,
    PyspecError,
    TooManyRequests,
)
from pyspec.rules import Margin, Strict, Verification
from pyspec.serve.answers import EventStream, PendingRequest, gone, whole
from pyspec.serve.metrics import Metrics
from pyspec.serve.worker import Worker
from pyspec.text import piece_reader

if TYPE_CHECKING:
    from pyspec.batch.jobs import Job
    from pyspec.batch.records import Record, Result
    from pyspec.batch.run import Batch

MAX_N = 16
"""Most choices of one request."""

_BODY_S = 30.0
# a request whose body takes longer to come is given up
_STATUS = {"ContextOverflow": 400, "InputError": 400, "OptionError": 400, "Cancelled": 503}
_PAGE = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)


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
        self._count = 0

    # -- asking ------------------------------------------------------------------------------------

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
            body, inboxes, f"{prefix}-{name}", serving.model, self.piece, serving.about, self._done
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
        job = self.batch.jobs.job(self._next(), asked)
        job.alternatives = body.alternatives
        return _ruled(job, body.speculation or {})

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _done(self, result: Result, timings: dict[str, float]) -> None:
        self.metrics.answered(result, timings)

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


# -- routes ------------------------------------------------------------------------------------------


def make_app(batch: Batch, serving: Serving) -> Starlette:
    """The application over a `Batch` made with `interactive=True`; it owns the batch's thread, not the batch."""
    server = Service(batch, serving)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        server.worker.start()
        yield
        await server.worker.stop()

    async def complete(request: Request) -> Any:
        return await _complete(server, request)

    async def models(request: Request) -> Response:
        _authorised(serving, request)
        entry = {"id": serving.model, "object": "model", "created": 0, "owned_by": "pyspec"}
        return _json({"object": "list", "data": [{**entry, "meta": batch.facts}]})

    async def health(_request: Request) -> Response:
        running, waiting = batch.load
        return _json({"status": "ok", "running": running, "waiting": waiting})

    async def metrics(request: Request) -> Response:
        _authorised(serving, request)
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    routes = [Route(path, _page) for path in _PAGE]
    routes += [Route(f"/v1/{name}", complete, methods=["POST"]) for name in _COMPLETIONS]
    routes += [Route("/v1/models", models), Route("/health", health), Route("/v1/health", health)]
    routes += [Route("/metrics", metrics)]
    return Starlette(
        routes=routes,
        middleware=_middleware(serving),
        exception_handlers={PyspecError: _refuse, HTTPException: _refuse, Exception: _refuse},
        lifespan=lifespan,
    )


_COMPLETIONS = ("chat/completions", "completions")


def _middleware(serving: Serving) -> list[Middleware]:
    stack = []
    if (
        serving.hosts is not None
    ):  # a page elsewhere cannot reach it under another name of this machine
        stack.append(Middleware(TrustedHostMiddleware, allowed_hosts=list(serving.hosts)))
    if serving.origins:
        allowed = {"allow_methods": ["*"], "allow_headers": ["*"]}
        stack.append(
            Middleware(CORSMiddleware, allow_origins=list(serving.origins), **allowed)  # type: ignore[arg-type]
        )
    return stack


async def _complete(server: Service, request: Request) -> Any:
    _authorised(server.serving, request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":  # what a form of another page can send is not believed
        raise HTTPException(415, "send application/json")
    asked = await server.ask(request.url.path, await _body(request, server.serving.max_body))
    server.metrics.asked(asked.body.form)
    if asked.body.stream:
        return EventStream(asked, server.drop)
    answer = asyncio.ensure_future(whole(asked))
    left = asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(499, "the client has gone")
        return _json(answer.result())
    finally:
        answer.cancel()
        left.cancel()
        server.drop(asked)


async def _body(request: Request, most: int) -> bytes:
    """The whole body. Raises HTTPException for one that is too long or too slow."""

    async def read() -> bytes:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                raise HTTPException(413, f"the body is longer than {most} bytes")
        return bytes(data)

    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise HTTPException(413, f"the body is longer than {most} bytes")
    try:
        return await asyncio.wait_for(read(), _BODY_S)
    except ClientDisconnect:
        raise HTTPException(499, "the client has gone") from None
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the body did not come in {_BODY_S:.0f} s") from None


def _authorised(serving: Serving, request: Request) -> None:
    if serving.api_key is None:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), serving.api_key.encode()):
        raise HTTPException(401, "the API key is missing or wrong: Authorization: Bearer KEY")


async def _page(request: Request) -> Response:
    name = _PAGE[request.url.path]
    data = (files("pyspec.serve") / "page" / name).read_bytes()
    headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}
    return Response(data, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    data = msgspec.json.encode(value)
    return Response(data, status, headers, media_type="application/json")


async def _refuse(_request: Request, error: Exception) -> Response:
    status, code = status_of(error)
    message = error.detail if isinstance(error, HTTPException) else str(error)
    if status == 500:
        message = "the server failed; its log says of what"
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = {"retry-after": "1"} if status == 429 else None
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return _json(body, status, headers)


def status_of(error: Exception) -> tuple[int, str | None]:
    """An exception's HTTP status, and its code for clients."""
    if isinstance(error, HTTPException):
        return error.status_code, "invalid_api_key" if error.status_code == 401 else None
    if isinstance(error, TooManyRequests):
        return 429, "rate_limit_exceeded"
    if isinstance(error, AnswerFailed):
        name = error.kind
        return _STATUS.get(name, 500), name
    if isinstance(error, ContextOverflow):
        return 400, "context_length_exceeded"
    if isinstance(error, InputError):
        return 400, None
    return 503 if isinstance(error, (EngineBusy, Cancelled, EngineError)) else 500, None
