"""The HTTP application: routes, limits, and errors in the shape that OpenAI's clients expect."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator
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

from pyspec.errors import (
    AnswerFailed,
    Cancelled,
    ContextOverflow,
    EngineBusy,
    EngineError,
    InputError,
    PyspecError,
    TooManyRequests,
)
from pyspec.serve.answers import EventStream, gone, whole
from pyspec.serve.service import Service, Serving

if TYPE_CHECKING:
    from pyspec.batch.run import Batch

_BODY_S = 30.0
# a request whose body takes longer to come is given up
_STATUS = {"ContextOverflow": 400, "InputError": 400, "OptionError": 400, "Cancelled": 503}
_PAGE = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)


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
    # a page elsewhere cannot reach it under another name of this machine
    if serving.hosts is not None:
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
