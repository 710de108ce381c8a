"""The HTTP application: routes, limits, and errors in the shape that each interface's clients expect."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from pyspec.errors import (
    AnswerFailed,
    ContextOverflow,
    EngineError,
    InputError,
    PyspecError,
    ShuttingDown,
    TemplateError,
    TooManyRequests,
)
from pyspec.serve import tokenizing
from pyspec.serve.access import ASKED, AccessLog, Spans
from pyspec.serve.completions import CHATS, TEXTS
from pyspec.serve.guard import HostCheck
from pyspec.serve.interface import openai_refusal
from pyspec.serve.messages import MESSAGES
from pyspec.serve.metrics import Metrics
from pyspec.serve.pending import PendingRequest
from pyspec.serve.responses import RESPONSES
from pyspec.serve.service import Service
from pyspec.serve.settings import ServerSettings

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from pyspec.batch.run import Batch
    from pyspec.serve.interface import Interface

INTERFACES = {
    "/v1/chat/completions": CHATS,
    "/v1/completions": TEXTS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
_COUNT = "/count_tokens"
_BODY_S = 30.0
# a request whose body takes longer to come is given up

READER_S = 120.0
"""How long a reader may leave the connection full before it is given up."""

_STATUS = {"InputError": 400, "OptionError": 400, "Cancelled": 503}
_SCRIPTS = ("page.css", "page.js", "answer.js", "markdown.js")
_PAGE = {"/": "page.html"} | {f"/{name}": name for name in _SCRIPTS}
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

    app = Starlette(
        routes=[*(Route(path, _page) for path in _PAGE), *Handlers(server, told).routes()],
        middleware=_middleware(serving),
        exception_handlers={PyspecError: _refuse, HTTPException: _refuse, Exception: _refuse},
        lifespan=lifespan,
    )
    app.state.service = server
    return app


class Handlers:
    """What each path answers. All but health ask for the key, where there is one."""

    def __init__(self, server: Service, told: Metrics) -> None:
        self._server, self._told = server, told
        self._serving, self._batch = server.serving, server.batch

    def routes(self) -> list[Route]:
        """The paths."""
        posted = dict.fromkeys(INTERFACES, self.complete)
        posted |= {path + _COUNT: self.count_tokens for path in INTERFACES if "messages" in path}
        posted |= dict.fromkeys(("/tokenize", "/detokenize"), self.tokenize)
        posted |= dict.fromkeys(("/v1/embeddings", "/embeddings"), self.embeddings)
        got = {
            "/v1/models": self.models,
            "/v1/models/{name:path}": self.model,
            "/health": self.health,
            "/v1/health": self.health,
            "/health/ready": self.health,
            "/health/live": self.live,
            "/metrics": self.metrics,
            "/props": self.props,
            "/tokenizer_info": self.tokenizer_info,
        }
        routes = [Route(path, answer, methods=["POST"]) for path, answer in posted.items()]
        return [*routes, *(Route(path, answer) for path, answer in got.items())]

    async def complete(self, request: Request) -> Any:
        """Answers, whole or streamed."""
        interface = INTERFACES[request.url.path]
        asked = await self._server.ask(interface, await _data(self._serving, request))
        request.scope[ASKED] = asked
        self._told.asked(interface.kind)
        return await _answer(self._server, interface, asked, request)

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens a request of Anthropic's has."""
        data = await _data(self._serving, request)
        return _json({"input_tokens": await self._server.count(MESSAGES.read(data), len(data))})

    async def tokenize(self, request: Request) -> Response:
        """Tokens of a text, or the text of tokens."""
        data = await _data(self._serving, request)
        work = tokenizing.tokenize if request.url.path == "/tokenize" else tokenizing.detokenize
        return _json(await asyncio.to_thread(work, self._batch, data))

    async def embeddings(self, request: Request) -> Response:
        """None are made here."""
        await _data(self._serving, request)
        raise HTTPException(501, tokenizing.NO_EMBEDDINGS)

    async def models(self, request: Request) -> Response:
        """The models there are."""
        _authorised(self._serving, request)
        return _json({"object": "list", "data": [self._entry()]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        _authorised(self._serving, request)
        if request.path_params["name"] != self._serving.model:
            raise HTTPException(404, f"the model here is {self._serving.model}")
        return _json(self._entry())

    def _entry(self) -> dict[str, Any]:
        about = {"id": self._serving.model, "object": "model", "created": 0, "owned_by": "pyspec"}
        return {**about, "meta": self._batch.facts}

    async def props(self, request: Request) -> Response:
        """What llama-server's clients want to know of a server."""
        _authorised(self._serving, request)
        path = self._batch.target.model_path
        return _json(tokenizing.props(self._batch, self._serving, path))

    async def tokenizer_info(self, request: Request) -> Response:
        """What the tokenizer is."""
        _authorised(self._serving, request)
        return _json(tokenizing.tokenizer_info(self._batch))

    async def health(self, _request: Request) -> Response:
        """Whether the server takes requests, and what it does: 503 where it is about to end."""
        running, waiting = self._batch.load
        ready = self._server.alive and not self._server.draining
        word = "ok" if ready else "draining" if self._server.alive else "failed"
        status = 200 if ready else 503
        return _json({"status": word, "running": running, "waiting": waiting}, status)

    async def live(self, _request: Request) -> Response:
        """Whether the process works; 503 where only a new one would."""
        alive = self._server.alive
        return _json({"status": "ok" if alive else "failed"}, 200 if alive else 503)

    async def metrics(self, request: Request) -> Response:
        """Counters, for Prometheus."""
        _authorised(self._serving, request)
        return Response(self._told.text(), media_type="text/plain; version=0.0.4")


def _middleware(serving: ServerSettings) -> list[Middleware]:
    stack = []
    if serving.log is not None:
        stack.append(Middleware(AccessLog, write=serving.log))
    with contextlib.suppress(ImportError):
        from opentelemetry import propagate, trace  # noqa: PLC0415 - there or not

        stack.append(Middleware(Spans, trace=trace, propagate=propagate))
    if serving.hosts is not None:
        stack.append(Middleware(HostCheck, names=serving.hosts))
    if serving.origins:
        allowed = {"allow_methods": ["*"], "allow_headers": ["*"]}
        stack.append(
            Middleware(CORSMiddleware, allow_origins=list(serving.origins), **allowed)  # type: ignore[arg-type]
        )
    return stack


# -- requests ----------------------------------------------------------------------------------------------------------


async def _data(serving: ServerSettings, request: Request) -> bytes:
    """The body of a request that may be made."""
    _authorised(serving, request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":  # what a form of another page can send is not believed
        raise HTTPException(415, "send application/json")
    return await _body(request, serving.max_body)


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
    told = request.headers.get("authorization", "").removeprefix("Bearer ")
    given = told or request.headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode(), serving.api_key.encode()):
        raise HTTPException(
            401, "the API key is missing or wrong: Authorization: Bearer KEY, or x-api-key: KEY"
        )


# -- answers -----------------------------------------------------------------------------------------------------------


async def _answer(
    server: Service, interface: Interface, asked: PendingRequest, request: Request
) -> Any:
    if asked.body.stream:
        return EventStream(interface.events(asked), partial(server.drop, asked))
    answer = asyncio.ensure_future(_whole(interface, asked))
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


async def _whole(interface: Interface, asked: PendingRequest) -> dict[str, Any]:
    """The body of a response that is not streamed. Raises AnswerFailed."""
    choices = asked.choices()
    async for _ in asked.updates(choices):
        pass
    return interface.whole(asked, choices)


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """The answers of a request as server-sent events. `end` is called at their end, however it came."""

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._end = end

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


async def _refuse(request: Request, error: Exception) -> Response:
    status, code = status_of(error)
    message = error.detail if isinstance(error, HTTPException) else str(error)
    if status == 500:
        message = "the server failed; its log says of what"
    headers = {"retry-after": "1"} if status in (429, 503) else None
    interface: Interface | None = INTERFACES.get(request.url.path.removesuffix(_COUNT))
    refusal = interface.refusal if interface else openai_refusal
    return _json(refusal(status, code, message), status, headers)


_CODES: tuple[tuple[type[Exception], int, str | None], ...] = (
    (ShuttingDown, 503, "shutting_down"),
    (TooManyRequests, 429, "rate_limit_exceeded"),
    (ContextOverflow, 400, "context_length_exceeded"),
    (InputError, 400, None),
    (EngineError, 503, None),
    (TemplateError, 503, None),
)


def status_of(error: Exception) -> tuple[int, str | None]:
    """An exception's HTTP status, and its code for clients."""
    if isinstance(error, HTTPException):
        return error.status_code, "invalid_api_key" if error.status_code == 401 else None
    if isinstance(error, AnswerFailed):
        return _STATUS.get(error.kind, 500), error.kind
    known = ((status, code) for kind, status, code in _CODES if isinstance(error, kind))
    return next(known, (500, None))
