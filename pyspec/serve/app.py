"""The HTTP application: routes, limits, and errors in the shape that OpenAI's clients expect."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from pyspec.batch.bodies import PATHS
from pyspec.errors import (
    AnswerFailed,
    ContextOverflow,
    EngineError,
    InputError,
    PyspecError,
    TemplateError,
    TooManyRequests,
)
from pyspec.serve.guard import HostCheck
from pyspec.serve.service import Choice, PendingRequest, ServerSettings, Service

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from pyspec.batch.records import Result
    from pyspec.batch.run import Batch

_BODY_S = 30.0
# a request whose body takes longer to come is given up

READER_S = 120.0
"""How long a reader may leave the connection full before it is given up."""

_STATUS = {"InputError": 400, "OptionError": 400, "Cancelled": 503}
_PAGE = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:",
    "x-content-type-options": "nosniff",
}


def make_app(batch: Batch, serving: ServerSettings) -> Starlette:
    """The application over a `Batch` made with `interactive=True`; it owns the batch's thread, not the batch."""
    told = Metrics(batch)
    server = Service(batch, serving, told.answered)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        server.start()
        yield
        await server.stop()

    async def complete(request: Request) -> Any:
        asked = await _asked(server, request)
        told.asked(asked.body.form)
        return await _answer(server, asked, request)

    async def models(request: Request) -> Response:
        _authorised(serving, request)
        return _json({"object": "list", "data": [_model_entry(serving, batch)]})

    async def model(request: Request) -> Response:
        _authorised(serving, request)
        if request.path_params["name"] != serving.model:
            raise HTTPException(404, f"the model here is {serving.model}")
        return _json(_model_entry(serving, batch))

    async def health(_request: Request) -> Response:
        running, waiting = batch.load
        return _json({"status": "ok", "running": running, "waiting": waiting})

    async def metrics(request: Request) -> Response:
        _authorised(serving, request)
        return Response(told.text(), media_type="text/plain; version=0.0.4")

    routes = [Route(path, _page) for path in _PAGE]
    routes += [Route(path, complete, methods=["POST"]) for path in PATHS]
    routes += [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]
    routes += [Route("/health", health), Route("/v1/health", health)]
    routes += [Route("/metrics", metrics)]
    return Starlette(
        routes=routes,
        middleware=_middleware(serving),
        exception_handlers={PyspecError: _refuse, HTTPException: _refuse, Exception: _refuse},
        lifespan=lifespan,
    )


def _model_entry(serving: ServerSettings, batch: Batch) -> dict[str, Any]:
    about = {"id": serving.model, "object": "model", "created": 0, "owned_by": "pyspec"}
    return {**about, "meta": batch.facts}


def _middleware(serving: ServerSettings) -> list[Middleware]:
    stack = []
    if serving.hosts is not None:
        stack.append(Middleware(HostCheck, names=serving.hosts))
    if serving.origins:
        allowed = {"allow_methods": ["*"], "allow_headers": ["*"]}
        stack.append(
            Middleware(CORSMiddleware, allow_origins=list(serving.origins), **allowed)  # type: ignore[arg-type]
        )
    return stack


# -- requests ----------------------------------------------------------------------------------------------------------


async def _asked(server: Service, request: Request) -> PendingRequest:
    _authorised(server.serving, request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":  # what a form of another page can send is not believed
        raise HTTPException(415, "send application/json")
    return await server.ask(request.url.path, await _body(request, server.serving.max_body))


async def _body(request: Request, most: int) -> bytes:
    """The whole body. Raises HTTPException for one that is too long or too slow."""

    async def read() -> bytes:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                raise HTTPException(413, f"the body is longer than {most} bytes")
        return bytes(data)

    try:
        return await asyncio.wait_for(read(), _BODY_S)
    except ClientDisconnect:
        raise HTTPException(499, "the client has gone") from None
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the body did not come in {_BODY_S:.0f} s") from None


def _authorised(serving: ServerSettings, request: Request) -> None:
    if serving.api_key is None:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), serving.api_key.encode()):
        raise HTTPException(401, "the API key is missing or wrong: Authorization: Bearer KEY")


# -- answers -----------------------------------------------------------------------------------------------------------


async def _answer(server: Service, asked: PendingRequest, request: Request) -> Any:
    if asked.body.stream:
        return EventStream(asked, server.drop)
    answer = asyncio.ensure_future(whole(asked))
    left = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(499, "the client has gone")
        return _json(answer.result())
    finally:
        answer.cancel()
        left.cancel()
        server.drop(asked)


async def whole(asked: PendingRequest) -> dict[str, Any]:
    """The body of a response that is not streamed. Raises AnswerFailed."""
    choices = asked.choices()
    async for _ in asked.updates(choices):
        pass
    body = asked.frame([choice.whole() for choice in choices])
    blocks = [choice.block for choice in choices]
    block = blocks[0] if len(blocks) == 1 else {"choices": blocks}
    return {**body, "usage": _usage(choices), "speculation": block}


async def events(asked: PendingRequest) -> AsyncIterator[bytes]:
    """The chunks of all choices as they come, then `[DONE]`, as server-sent events."""
    choices = asked.choices()
    if asked.is_chat:
        for choice in choices:
            yield _event(choice.chunk({"role": "assistant", "content": ""}))
    try:
        async for choice in asked.updates(choices):
            for chunk in choice.chunks():
                yield _event(chunk)
    except AnswerFailed as error:
        yield _event({"error": {"message": str(error), "type": "server_error", "code": error.kind}})
        return
    if (asked.body.stream_options or {}).get("include_usage"):
        yield _event({**asked.frame([], chunk=True), "usage": _usage(choices)})
    yield b"data: [DONE]\n\n"


def _usage(choices: Sequence[Choice]) -> dict[str, int]:
    used = [choice.result.usage for choice in choices]
    # the prompt of several choices counts once
    prompt = sum(usage.prompt_tokens for usage in used[:: choices[0].asked.body.n or 1])
    answer = sum(usage.completion_tokens for usage in used)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """The answers of a request as server-sent events. `drop` hears of their end, however it came."""

    def __init__(self, asked: PendingRequest, drop: Callable[[PendingRequest], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events(asked), headers=headers, media_type="text/event-stream")
        self._end = partial(drop, asked)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; ends early, and quietly, where nobody listens or nobody reads."""

        async def patiently(message: Message) -> None:
            await asyncio.wait_for(send(message), READER_S)

        try:
            await super().__call__(scope, receive, patiently)
        except (asyncio.TimeoutError, OSError, ClientDisconnect):
            pass
        finally:
            self._end()


# -- the page, and errors ----------------------------------------------------------------------------------------------


async def _page(request: Request) -> Response:
    path = Path(__file__).with_name("page") / _PAGE[request.url.path]
    return FileResponse(path, headers=_PAGE_HEADERS)


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
        return _STATUS.get(error.kind, 500), error.kind
    if isinstance(error, ContextOverflow):
        return 400, "context_length_exceeded"
    if isinstance(error, InputError):
        return 400, None
    return 503 if isinstance(error, (EngineError, TemplateError)) else 500, None


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
            "times_plain": (
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
