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
    TemplateError,
    TooManyRequests,
)
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
        interface = INTERFACES[request.url.path]
        asked = await server.ask(interface, await _data(serving, request))
        told.asked(interface.kind)
        return await _answer(server, interface, asked, request)

    async def count_tokens(request: Request) -> Response:
        data = await _data(serving, request)
        return _json({"input_tokens": await server.count(MESSAGES.read(data), len(data))})

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
    routes += [Route(path, complete, methods=["POST"]) for path in INTERFACES]
    routes += [Route("/v1/messages" + _COUNT, count_tokens, methods=["POST"])]
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
    headers = {"retry-after": "1"} if status == 429 else None
    interface: Interface | None = INTERFACES.get(request.url.path.removesuffix(_COUNT))
    refusal = interface.refusal if interface else openai_refusal
    return _json(refusal(status, code, message), status, headers)


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
