"""The definition of an interface: it reads requests, and writes answers and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from pyspec.errors import (
    AnswerFailed,
    ContextOverflow,
    DraftMismatch,
    EngineError,
    InputError,
    ModelError,
    ModelNotFound,
    PyspecError,
    ShuttingDown,
    TemplateError,
    ThreadUnsupported,
    TooManyRequests,
    UnsupportedModel,
)
from pyspec.requests.bodies import Body
from pyspec.serve.pending import FAILED, Choice, PendingRequest

Refusal = Callable[[int, str | None, str], dict[str, Any]]

OPENAI_TOO_LONG = (
    "This model's maximum context length is {have} tokens. However, your messages resulted in {need} tokens. "
    "Please reduce the length of the messages."
)
PROMPT_TOO_LONG = (
    "This model's maximum context length is {have} tokens. However, your prompt has {need} tokens. "
    "Please reduce the length of the prompt."
)


PING = b":\n\n"  # a server-sent comment, which clients ignore


@dataclass(frozen=True)
class Interface:
    """One API's format of requests and responses."""

    kind: str  # its label in metrics
    prefix: str  # of its responses' ids
    body: type[Body]  # of its requests
    whole: Callable[[PendingRequest, list[Choice]], dict[str, Any]]  # once all choices have ended
    # while they grow; it may raise AnswerFailed
    events: Callable[[PendingRequest], AsyncIterator[bytes]]
    refusal: Refusal  # an error's body from status, code and message
    broken: Callable[[int, str | None, str], bytes]  # the end of a stream that fails, from the same
    # the sentence by which clients know that they must shorten a prompt
    too_long: str = OPENAI_TOO_LONG
    streamed: tuple[type[Exception], ...] = ()  # errors that clients expect within the stream
    media_type: str = "text/event-stream"  # of a stream
    ping: bytes = PING  # if empty, none are sent


NO_THREADS = "thread_unsupported_request"  # Anthropic's: clients then retry without threads

_CODES: tuple[tuple[type[Exception], int, str | None], ...] = (
    (ShuttingDown, 503, "shutting_down"),
    (TooManyRequests, 429, "rate_limit_exceeded"),
    (ContextOverflow, 400, "context_length_exceeded"),
    (ThreadUnsupported, 400, NO_THREADS),
    (InputError, 400, None),
    (ModelNotFound, 404, "model_not_found"),
    (ModelError, 503, None),
    (DraftMismatch, 503, None),
    (UnsupportedModel, 503, None),
    (EngineError, 503, None),
    (TemplateError, 503, None),
)


def status_of(error: BaseException) -> tuple[int, str | None]:
    if isinstance(error, HTTPException):
        return error.status_code, "invalid_api_key" if error.status_code == 401 else None
    if isinstance(error, AnswerFailed):
        return FAILED.get(error.kind, 500), error.kind
    known = ((status, code) for kind, status, code in _CODES if isinstance(error, kind))
    return next(known, (500, None))


def error_fields(error: BaseException, interface: Interface | None) -> tuple[int, str | None, str]:
    """An error's HTTP status, code and message for the clients of an interface."""
    status, code = status_of(error)
    if interface is not None and isinstance(error, ContextOverflow):
        return status, code, interface.too_long.format(have=error.have, need=error.need)
    if status == 500 and not isinstance(error, PyspecError):
        return status, code, "the server failed; its log says of what"
    return status, code, error.detail if isinstance(error, HTTPException) else str(error)


def openai_refusal(status: int, code: str | None, message: str) -> dict[str, Any]:
    """An error in OpenAI's format."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with this value as its body."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def data_event(value: Any) -> bytes:
    """An event of a stream without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def event(value: dict[str, Any]) -> bytes:
    """A server-sent event, named after the `type` of its value."""
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), msgspec.json.encode(value))


READER_S = 120.0  # time limit for a client to make room in a full connection
Admission = tuple["PendingRequest", "Callable[[], None]"]  # and the function that ends it


class EventStream(StreamingResponse):
    """A streamed response, which may begin before the request is admitted.

    interface: writes the events. refusal: the last event of a request that is refused or fails. every: seconds of silence before
    a ping. The request ends with the stream, for whatever reason that ends.
    """

    def __init__(
        self,
        begun: asyncio.Future[Admission],
        interface: Interface,
        refusal: Callable[[BaseException], bytes],
        every: float,
    ) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        self._begun, self._every, self._of = begun, every, interface
        self._expect()
        written = self._written(refusal)
        super().__init__(written, headers=headers, media_type=interface.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answers; end without an error if the client leaves or does not read."""

        async def timed(message: Message) -> None:
            self._silent.cancel()
            with anyio.fail_after(READER_S):
                await send(message)
            self._expect()

        try:
            await super().__call__(scope, receive, timed)
        except (OSError, ClientDisconnect):  # OSError: TimeoutError, too
            pass
        finally:
            self._silent.cancel()
            self._begun.add_done_callback(_end)

    async def _written(self, refusal: Callable[[BaseException], bytes]) -> AsyncIterator[bytes]:
        while not self._begun.done():
            if self._of.ping:
                yield self._of.ping
            await asyncio.wait({self._begun}, timeout=self._every)
        if error := self._begun.exception():
            yield refusal(error)
            return
        try:
            async for each in self._of.events(self._begun.result()[0]):
                yield each
        except AnswerFailed as failed:
            yield refusal(failed)

    def _expect(self) -> None:
        self._silent = asyncio.get_running_loop().call_later(self._every, self._ping)

    def _ping(self) -> None:
        if self._begun.done() and self._begun.exception() is None:
            self._begun.result()[0].ping()
        self._expect()


def _end(begun: asyncio.Future[Admission]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result()[1]()
