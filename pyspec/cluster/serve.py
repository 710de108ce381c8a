"""`pyspec serve` over several processes or machines, by Ray Serve (extra `[ray-serve]`).

A router receives requests and routes each to a replica, which has its own model and application. A conversation stays at the
replica whose prefix cache holds its beginning. Ray does placement, scaling, rolling updates and restarts.

    from pyspec.cluster.serve import app

    served = app("smollm2-135m-instruct", replicas=(1, 4))     # serve run module:served

or `serve run pyspec.cluster.serve:build model=smollm2-135m-instruct`, or a file of Ray Serve's with its import_path and args.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pyspec.batch.maker import Settings
from pyspec.batch.run import Batch
from pyspec.errors import OptionError
from pyspec.sampling.limits import MAX_TOKENS
from pyspec.serve.apis.interface import PING, Interface, json_response, openai_refusal
from pyspec.serve.apis.messages import NOTE
from pyspec.serve.app import make_app
from pyspec.serve.paths import interface_at
from pyspec.serve.settings import MAX_BODY, ServerSettings, served_name
from pyspec.serve.timeouts import whole_body

log = logging.getLogger("pyspec")

_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_TRIES = 3
# attempts at a request whose replicas end before its first text is sent
_EVENT = b'"sequence_number":'
# occurs once in each event of a response; in texts, quotes are escaped
_SILENT = re.compile(rb"(?::[^\n]*\n\n|event: ping\n[^\n]*\n\n)*")
# pings alone
_PING_S = ServerSettings.ping
_LAST_WORDS_S = 10.0
# a router outlives its replicas by so much, to report answers that were cut
_LOST = "the replica that answered ended; ask again"


class Replica:
    """A model with its application. `answer` takes an HTTP request and streams the response: its start, then its body."""

    def __init__(self, model: str, server: dict[str, Any], arguments: dict[str, Any]) -> None:
        self._batch = Batch(model, interactive=True, **arguments)
        self._batch.prepare()
        settings = ServerSettings(**{"model": served_name(model), **server})
        self._app = make_app(self._batch, settings)
        self._open = contextlib.AsyncExitStack()
        self._started = asyncio.Lock()
        self._runs = False

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Any]:
        """Yield (status, headers), then pieces of the body."""
        await self._start()
        sent: asyncio.Queue[Any] = asyncio.Queue(64)
        received = iter([{"type": "http.request", "body": body}])
        gone = asyncio.Event()

        async def receive() -> Any:
            message = next(received, None)
            if message is None:
                await gone.wait()
                message = {"type": "http.disconnect"}
            return message

        async def run() -> None:
            try:
                await self._app(scope, receive, sent.put)
            finally:
                if not gone.is_set():  # the queue may be full for good
                    await sent.put(None)

        task = asyncio.create_task(run())
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.start":
                    yield message["status"], list(message["headers"])
                elif message.get("body"):
                    yield message["body"]
        finally:  # also where the reader has gone
            gone.set()
            task.cancel()

    async def _start(self) -> None:
        """Start the application, in the loop that requests arrive in."""
        async with self._started:
            if not self._runs:
                context = self._app.router.lifespan_context(self._app)
                await self._open.enter_async_context(context)
                self._runs = True

    def check_health(self) -> None:
        """End this process if the engine's thread failed or hangs. Waiting requests go elsewhere, and Ray starts a new replica.

        Ray would wait for an unhealthy replica's running requests, which never end.
        """
        fault = self._app.state.fleet.default.fault if self._runs else None
        if fault is not None:
            log.error("the engine's thread %s, and this replica ends", fault)
            os._exit(1)

    async def __del__(self) -> None:
        await self._open.aclose()
        if self._app.state.fleet.hung:  # the engine's thread still uses the batch
            os._exit(1)
        self._batch.close()


class Ingress:
    """Routes each request to the replica of its conversation.

    A request whose replica ends goes to another one, unless text of its answer has been sent.
    """

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        interface = interface_at(request.url.path)
        try:
            body = await whole_body(request, MAX_BODY)
            key = conversation_key(request.headers, body)
            tries = Tries(self._replicas.options(session_id=key), _scope(request), body)
            status, headers, first, pieces = await tries.begin()
        except HTTPException as error:
            return _refusal(interface, error.status_code, error.detail)
        if interface is None or not _is_stream(headers):
            return StreamingResponse(_rest(first, pieces), status, headers)
        return StreamingResponse(_events(first, pieces, interface, tries), status, headers)


def _scope(request: Request) -> dict[str, Any]:
    """The part of a request's ASGI scope that the application needs and that can be pickled."""
    named = (
        "type",
        "method",
        "path",
        "raw_path",
        "query_string",
        "headers",
        "http_version",
        "scheme",
    )
    scope = {name: request.scope[name] for name in named if name in request.scope}
    return scope | {"path": request.url.path, "root_path": "", "client": None, "server": None}


class Tries:
    """Gets the response to one request from a replica, or from another one where that ends, `_TRIES` times at most."""

    def __init__(self, replicas: Any, scope: dict[str, Any], body: bytes) -> None:
        self._replicas, self._request, self._left = replicas, (scope, body), _TRIES

    async def begin(self) -> tuple[int, dict[str, str], bytes, AsyncIterator[bytes]]:
        """A response's status, headers, first piece and further pieces. Raises HTTPException if no replica answers.

        A stream's first piece is among the further ones, since it may take long.
        """
        while self._left:
            self._left -= 1
            pieces = self._replicas.answer.remote(*self._request)
            try:
                status, raw = await anext(pieces)
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
                first = b"" if _is_stream(headers) else await anext(pieces, b"")
            except RayActorError as error:
                log.warning("a replica ended before it answered: %s", type(error).__name__)
                continue
            except (BackPressureError, DeploymentUnavailableError) as error:
                log.warning("no replica takes a request: %s", error.message)
                busy = "no replica takes requests now; try again in a moment"
                raise HTTPException(503, busy) from None
            return status, headers, first, pieces
        raise HTTPException(503, _LOST)


def _is_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith("text/event-stream")


async def _rest(first: bytes, pieces: AsyncIterator[bytes] | None) -> AsyncIterator[bytes]:
    """A response's body. Raises RayActorError if its replica ends."""
    if first:
        yield first
    if pieces is not None:
        async for piece in pieces:
            yield piece


async def _events(
    first: bytes, pieces: AsyncIterator[bytes] | None, interface: Interface, tries: Tries
) -> AsyncIterator[bytes]:
    """A stream. If its replica ends, another one's follows, or an error where text has been sent already."""
    has_text, count = False, 0
    while True:
        try:
            async for piece in _rest(first, pieces):
                has_text = has_text or not _SILENT.fullmatch(piece)
                count += piece.count(_EVENT)
                yield piece
        except RayActorError as error:
            if has_text:
                yield interface.broken(count, 503, None, _LOST)
                return
            log.warning("a replica ended while a stream waited: %s", type(error).__name__)
        else:
            return
        again = asyncio.ensure_future(_again(interface, tries))
        try:
            while not (await asyncio.wait({again}, timeout=_PING_S))[0]:
                yield PING
            first, pieces = again.result()
        finally:
            again.cancel()


async def _again(interface: Interface, tries: Tries) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """Another replica's stream: first piece, further pieces. The headers have been sent, so that a refusal becomes an event."""
    try:
        status, headers, first, pieces = await tries.begin()
        if _is_stream(headers):
            return first, pieces
        code, message = _why(b"".join([piece async for piece in _rest(first, pieces)]))
    except HTTPException as error:
        status, code, message = error.status_code, None, error.detail
    except RayActorError:
        status, code, message = 503, None, _LOST
    return interface.broken(0, status, code, message), None


def _why(refusal: bytes) -> tuple[str | None, str]:
    """Code and message of an error in any interface's format."""
    try:
        error = msgspec.json.decode(refusal)["error"]
        return error.get("code"), str(error["message"])
    except (msgspec.MsgspecError, UnicodeError, AttributeError, LookupError, TypeError):
        return None, _LOST


def _refusal(interface: Interface | None, status: int, message: str) -> Response:
    """An error in an interface's format."""
    written = openai_refusal if interface is None else interface.refusal
    headers = {"retry-after": "1"} if status == 503 else None
    return json_response(written(status, None, message), status, headers)


def conversation_key(headers: Mapping[str, str], body: bytes) -> str:
    """A key that all requests of a conversation share: the header x-session-id, or a hash of its beginning; "" for neither.

    A chat's beginning is the text of the turns up to the user's first: clients move cache marks about, and add notes that
    change with each request. A text's beginning is its first 256 characters.
    """
    named = headers.get("x-session-id")
    if named:
        return named
    try:
        request = msgspec.json.decode(body)
        prompt = request.get("messages") or request.get("input") or request.get("prompt")
    except (msgspec.MsgspecError, UnicodeError, AttributeError, RecursionError):
        return ""
    if not prompt or not isinstance(prompt, str | list):
        return ""
    begins = prompt[:256] if isinstance(prompt, str) else list(_opening(prompt))
    parts = [_words(request.get("system")), _words(request.get("instructions")), begins]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _opening(turns: Sequence[Any]) -> Iterator[tuple[Any, list[str]]]:
    """Role and texts of the turns up to the user's first."""
    for turn in turns:
        if not isinstance(turn, dict):
            yield turn, []  # one of several prompts, or a token id
            return
        yield turn.get("role"), _words(turn.get("content"))
        if turn.get("role") == "user":
            return


def _words(content: Any) -> list[str]:
    """The texts of a content: one string, or parts."""
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return [text for text in texts if isinstance(text, str) and not text.startswith(NOTE)]


def app(
    model: str,
    *,
    replicas: int | tuple[int, int] = 1,
    routers: int = 1,
    num_cpus: float | None = None,
    num_gpus: float = 0.0,
    queue: int = 64,
    drain: float = 30.0,
    server: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """An application for `ray.serve.run` or `serve run`.

    model: a file, or a name that each node resolves for itself. replicas: their number, or the fewest and the most: Ray then
    adds replicas when each has more requests than it answers at once. routers: processes that receive requests. num_cpus,
    num_gpus: of each replica, which uses as many threads. queue: answers that may wait at a replica. drain: seconds for running
    answers when Ray ends a replica for a new version or for less load. server: fields of `ServerSettings`, such as api_key.
    arguments: those of `Batch`. Raises OptionError.
    """
    fewest, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    if not 1 <= fewest <= most:
        raise OptionError(f"replicas are {replicas}", "give a number, or the fewest and the most")
    parallel = int(arguments.setdefault("parallel", 4))
    cpus = float(arguments.get("n_threads") or 1) if num_cpus is None else num_cpus
    threads = {"n_threads": max(1, int(cpus)), "n_threads_batch": max(1, int(cpus))}
    arguments = {"settings": Settings(max_tokens=MAX_TOKENS), **threads, **arguments}
    scale = AutoscalingConfig(
        min_replicas=fewest, max_replicas=most, target_ongoing_requests=parallel
    )
    answering = serve.deployment(
        Replica,
        name="replica",
        max_ongoing_requests=parallel + queue,
        autoscaling_config=scale if most > fewest else None,
        num_replicas=fewest if most == fewest else None,
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
        ray_actor_options={"num_cpus": cpus, "num_gpus": num_gpus},
        health_check_period_s=5,
        graceful_shutdown_timeout_s=drain,
    ).bind(model, {"queue": queue, **(server or {})}, arguments)
    taking = serve.deployment(
        Ingress,
        name="router",
        num_replicas=routers,
        max_ongoing_requests=1024,
        graceful_shutdown_timeout_s=drain + _LAST_WORDS_S,
        ray_actor_options={"num_cpus": 0},
    )
    return taking.bind(answering)


def build(args: dict[str, Any]) -> Any:
    """`app` with arguments from Ray Serve's command line or file. Numbers may be text, replicas "2" or "1-4"."""
    options: dict[str, Any] = {}
    for name, value in args.items():
        options[name] = msgspec.json.decode(value) if _is_number(value) else value
    count = options.get("replicas")
    if isinstance(count, str):
        fewest, _, most = count.partition("-")
        options["replicas"] = (int(fewest), int(most or fewest))
    return app(**options)


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and value.replace(".", "", 1).isdigit()
