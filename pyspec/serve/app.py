"""The HTTP application: routes, limits, and errors in the format that each interface's clients expect."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pyspec.batch.run import Batch
from pyspec.errors import AnswerFailed, ContextOverflow, ModelNotFound, PyspecError
from pyspec.requests.bodies import Body, decoded
from pyspec.serve import ServerSettings, ollama
from pyspec.serve.access import REQUEST, AccessLog, Keys, LengthCheck, Metrics, whole_body
from pyspec.serve.completions import CHATS, INFILL, TEXTS, WORK, Work
from pyspec.serve.fleet import Embedder, EmbeddingBody, Fleet, OtherModels
from pyspec.serve.interface import (
    EventStream,
    Interface,
    PendingRequest,
    json_response,
    openai_refusal,
)
from pyspec.serve.messages import MESSAGES, CountBody, count_tokens
from pyspec.serve.ollama import OLLAMA_CHATS, OLLAMA_TEXTS
from pyspec.serve.responses import RESPONSES
from pyspec.serve.service import Service

log = logging.getLogger("pyspec")

_SCRIPTS = ("page.css", "page.js", "answer.js", "markdown.js")
_PAGE = {"/": "page.html"} | {f"/{name}": name for name in _SCRIPTS}
_SOON = {"retry-after": "1"}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:",
    "x-content-type-options": "nosniff",
}

_TYPES = ("application/json", "application/octet-stream")
"""Types of bodies that a foreign page cannot send unless allowed to; aiohttp's clients that name none send the second."""

_BY_PAGES = {"origin", "referer", "sec-fetch-site", "sec-fetch-mode"}
"""Headers that tell a page's request without a type from a program's."""


def make_app(
    batch: Batch,
    serving: ServerSettings,
    others: OtherModels | None = None,
    embedders: Sequence[Embedder] = (),
) -> Starlette:
    """The application over a `Batch` made with `interactive=True`. It owns the engine's thread, but not the batch."""
    metrics = Metrics(lambda: [service.batch for service in fleet.services])
    fleet = Fleet(batch, serving, metrics.answered, others)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        fleet.default.start()
        yield
        await fleet.stop()

    app = _App(
        routes=[
            *(Route(path, _page) for path in _PAGE),
            *Handlers(fleet, serving, metrics, embedders).routes(),
        ],
        middleware=[Middleware(LengthCheck), *_middleware(serving)],
        exception_handlers={PyspecError: _refuse, HTTPException: _refuse, Exception: _refuse},
        lifespan=lifespan,
    )
    app.state.fleet = fleet
    return app


class _App(Starlette):
    """Paths of OpenAI's and Anthropic's may lack their /v1."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = f"/v1{scope.get('path')}"
        known = path in _V1 or path.startswith("/v1/models/")
        await super().__call__({**scope, "path": path} if known else scope, receive, send)


class Handlers:
    """The handlers of all paths. All but those of health check the API key."""

    def __init__(
        self, fleet: Fleet, serving: ServerSettings, metrics: Metrics, embedders: Sequence[Embedder]
    ) -> None:
        self._fleet, self._serving, self._metrics = fleet, serving, metrics
        self._embedders = embedders
        self._keys = Keys(serving.api_key)
        self._working = asyncio.Semaphore()

    def routes(self) -> list[Route]:
        posted = dict.fromkeys(INTERFACES, self.complete)
        posted |= dict.fromkeys(_WORK, self.work)
        posted |= dict.fromkeys(("/v1/embeddings", "/api/embed"), self.embed)
        got = {
            "/v1/models": self.models,
            "/v1/models/{name:path}": self.model,
            "/health": self.health,
            "/metrics": self.metrics,
            "/api/version": self.version,
            "/api/tags": self.tags,
            "/api/ps": self.tags,
        }
        routes = [Route(path, answer, methods=["POST"]) for path, answer in posted.items()]
        return [*routes, *(Route(path, answer) for path, answer in got.items())]

    async def complete(self, request: Request) -> Any:
        """Answer a completion request of any interface, whole or streamed."""
        interface = INTERFACES[request.url.path]
        data, holder = await self._data(request)
        body = decoded(interface.body, data)
        if (empty := getattr(body, "unasked", None)) is not None:
            async with self._fleet.using(body.model):
                return json_response(empty)
        begins = self._begin(request, interface, body, len(data), holder)
        if not body.stream:
            return await _whole_answer(interface, request, await begins)
        begun, every = asyncio.ensure_future(begins), self._serving.ping
        await asyncio.wait({begun}, timeout=every)
        # after this time the status has to go out, whether or not the request is admitted
        error = begun.exception() if begun.done() else None
        if error is not None and not isinstance(error, interface.streamed):
            raise error
        return EventStream(begun, interface, partial(_broken, request), every)

    async def _begin(
        self, request: Request, interface: Interface, body: Body, size: int, holder: str
    ) -> PendingRequest:
        """Admit a request of `size` bytes."""
        service = await self._fleet.take(body.model)
        try:
            pending = await service.ask(interface.prefix, body, size, holder)
        except BaseException:
            self._fleet.release(service)
            raise
        pending.end = partial(self._end, service, pending)
        request.scope[REQUEST] = pending
        self._metrics.request_received(interface.kind, pending.prompt_tokens)
        return pending

    def _end(self, service: Service, pending: PendingRequest) -> None:
        service.drop(pending)
        self._fleet.release(service)

    async def work(self, request: Request) -> Response:
        """Answer what needs a model and no answer of it: tokens of a text or a prompt, or the model's description."""
        data, _ = await self._data(request)
        kind, work = _WORK[request.url.path]
        body = decoded(kind, data)
        # one at a time: the processor belongs to the answers
        async with self._fleet.using(body.model) as service, self._working:
            return json_response(await asyncio.to_thread(work, service.batch, body))

    async def embed(self, request: Request) -> Response:
        """Answer with vectors in OpenAI's or ollama's format. A single embedder answers requests for any name."""
        data, _ = await self._data(request)
        if not self._embedders:
            raise HTTPException(501, "this server makes no embeddings; start it with --embed NAME")
        body, models = decoded(EmbeddingBody, data), {each.name: each for each in self._embedders}
        found = next(iter(models.values())) if len(models) == 1 else models.get(body.model or "")
        if found is None:
            name = str(body.model)[:80]
            hint = f"use {', '.join(models)}"
            raise ModelNotFound(f"no model {name!r} makes embeddings here", hint)
        ollamas = request.url.path == "/api/embed"
        if ollamas and body.truncate is None:
            body.truncate = True
        made = await found.answer(body)
        if ollamas:
            vectors = [each["embedding"] for each in made["data"]]
            counts = {"prompt_eval_count": made["usage"]["prompt_tokens"]}
            made = {"model": found.name, "embeddings": vectors, **counts}
        return json_response(made)

    async def _names(self) -> list[str]:
        embed = (each.name for each in self._embedders)  # some may answer, too
        return list(dict.fromkeys([*await self._fleet.names(), *embed]))

    async def models(self, request: Request) -> Response:
        self._keys.holder(request.headers)
        entries = [self._entry(name) for name in await self._names()]
        return json_response({"object": "list", "data": entries})

    async def model(self, request: Request) -> Response:
        self._keys.holder(request.headers)
        names, name = await self._names(), request.path_params["name"]
        if name not in names:
            raise HTTPException(404, f"the model here is {', '.join(names)}")
        return json_response(self._entry(name))

    def _entry(self, name: str) -> dict[str, Any]:
        """A model in OpenAI's format. meta: the facts of a loaded one, else None."""
        loaded = (each.batch for each in self._fleet.services if each.serving.model == name)
        batch = next(loaded, None)
        about = {"id": name, "object": "model", "created": 0, "owned_by": "pyspec"}
        return {**about, "meta": None if batch is None else batch.facts}

    async def version(self, _request: Request) -> Response:
        return json_response(ollama.VERSION)

    async def tags(self, request: Request) -> Response:
        """All models for ollama's clients, or at /api/ps those that are loaded."""
        self._keys.holder(request.headers)
        loaded = {each.serving.model: each.batch for each in self._fleet.services}
        names = loaded if request.url.path == "/api/ps" else await self._fleet.names()
        entries = [ollama.entry(name, loaded.get(name)) for name in names]
        return json_response({"models": entries})

    async def _data(self, request: Request) -> tuple[bytes, str]:
        """Check a request's key and type. Returns its body, and the key's holder."""
        holder = self._keys.holder(request.headers)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        untyped = "content-type" not in request.headers and not _BY_PAGES & {*request.headers}
        if kind not in _TYPES and not untyped:
            raise HTTPException(415, "send application/json")
        return await whole_body(request, self._serving.max_body), holder

    async def health(self, _request: Request) -> Response:
        """The server's state and load; 503 if it is shutting down, or has to be restarted."""
        loads = [service.batch.load for service in self._fleet.services]
        running, waiting = (sum(load[i] for load in loads) for i in (0, 1))
        faults = filter(None, (service.fault for service in self._fleet.services))
        word = next(faults, None) or ("draining" if self._fleet.draining else "ok")
        state = {"status": word, "running": running, "waiting": waiting}
        return json_response(state) if word == "ok" else json_response(state, 503, _SOON)

    async def metrics(self, request: Request) -> Response:
        self._keys.holder(request.headers)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")


def _middleware(serving: ServerSettings) -> list[Middleware]:
    stack = []
    if serving.log is not None:
        stack.append(Middleware(AccessLog, write=serving.log))
    if serving.hosts is not None:
        names = [f"[{name}]" if ":" in name else name for name in serving.hosts]
        # releases of Starlette before its parser of hosts call every IPv6 address "["; DNS names none
        hosts = [*names, *(f"{name}." for name in names), "["]
        stack.append(Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False))
    if serving.origins:
        allowed = {"allow_methods": ["*"], "allow_headers": ["*"]}
        origins = list(serving.origins)
        stack.append(Middleware(CORSMiddleware, allow_origins=origins, **allowed))  # type: ignore[arg-type]
    return stack


# -- answers -----------------------------------------------------------------------------------------------------------


async def _whole_answer(
    interface: Interface, request: Request, pending: PendingRequest
) -> Response:
    """A response that is not streamed. The request is cancelled if the client leaves."""
    answer = asyncio.ensure_future(_whole(interface, pending))
    left = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(499, "the client has gone")
        return json_response(answer.result())
    finally:
        answer.cancel()
        left.cancel()
        pending.end()


async def _whole(interface: Interface, pending: PendingRequest) -> dict[str, Any]:
    """The body of a response that is not streamed. Raises AnswerFailed."""
    async for _ in pending.updates():
        pass
    return interface.whole(pending)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- the page, and errors ----------------------------------------------------------------------------------------------


async def _page(request: Request) -> Response:
    path = Path(__file__).with_name("page") / _PAGE[request.url.path]
    return FileResponse(path, headers=_PAGE_HEADERS)


async def _refuse(request: Request, error: Exception) -> Response:
    status, told = _refusal(request, error)
    return json_response(told, status, _SOON if status in (429, 503) else None)


def _broken(request: Request, error: BaseException) -> bytes:
    """The end of a stream whose request is refused, or whose answer fails."""
    if not isinstance(error, PyspecError):  # uvicorn logs those of requests that are not streamed
        log.error("%s failed", request.url.path, exc_info=error)
    return INTERFACES[request.url.path].broken(_refusal(request, error)[1])


def _refusal(request: Request, error: BaseException) -> tuple[int, dict[str, Any]]:
    """An error's HTTP status, and its body in the format that the client expects. The server's own errors are logged."""
    interface, code = interface_of(request), None
    if isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
        code = "invalid_api_key" if status == 401 else None
    elif isinstance(error, PyspecError):
        (status, code), message = error.http, str(error)
        if interface is not None and isinstance(error, ContextOverflow):
            message = interface.too_long.format(have=error.have, need=error.need)
    else:
        status, message = 500, "the server failed; its log says of what"
    # that of an answer has been logged already
    if status == 500 and isinstance(error, PyspecError) and not isinstance(error, AnswerFailed):
        log.error("%s %s failed: %s", request.method, request.url.path, error)
    return status, (interface.refusal if interface else openai_refusal)(status, code, message)


INTERFACES = {
    "/v1/chat/completions": CHATS,
    "/v1/completions": TEXTS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/infill": INFILL,
    "/api/chat": OLLAMA_CHATS,
    "/api/generate": OLLAMA_TEXTS,
}

_WORK: dict[str, Work] = {
    **WORK,
    "/v1/messages/count_tokens": (CountBody, count_tokens),
    "/api/show": (ollama.ShowBody, ollama.describe_model),
}
_OTHERS = ("/v1/models", "/v1/embeddings")
_V1 = {path for path in (*INTERFACES, *_WORK, *_OTHERS) if path.startswith("/v1/")}


def interface_of(request: Request) -> Interface | None:
    """The interface whose clients ask: that of the path, or of paths like it, or of a header of Anthropic's clients."""
    path = request.url.path
    if path in INTERFACES:
        return INTERFACES[path]
    if path.startswith("/api/"):
        return OLLAMA_CHATS
    anthropics = path.startswith("/v1/messages/") or "anthropic-version" in request.headers
    return MESSAGES if anthropics else None
