"""Protection of the application from the network: connections without a request, and requests with a foreign host name."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Protocol
except ImportError:  # httptools, written in C, is an extra of uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol  # type: ignore[assignment]

HEADERS_S = 10.0
"""A connection that has not sent its headers by then is closed."""

MAX_HALF, MAX_NEW = 256, 768
"""Limits on connections without a whole request. Above the first, a new connection evicts the oldest unless that came within
`GRACE_S`: many are accepted before any is read from, and a client that sends at once must not be evicted. The second is firm.
"""

GRACE_S = 0.5


class GuardedProtocol(_Protocol):
    """uvicorn's protocol, which itself waits for headers for ever, with a limit on connections without a request."""

    _half: ClassVar[dict[GuardedProtocol, None]] = {}  # oldest first
    _due: TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, or several requests."""
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            self._expect()
        else:
            self._arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self in self._half:
            return
        self._half[self] = None
        self._since = self.loop.time()
        self._due = self.loop.call_later(HEADERS_S, self._give_up)
        while len(self._half) > MAX_HALF:
            oldest = next(iter(self._half))
            if self._since - oldest._since < GRACE_S and len(self._half) <= MAX_NEW:  # noqa: SLF001 - of its own class
                return
            oldest.evict()

    @classmethod
    def half(cls) -> list[GuardedProtocol]:
        """Connections whose request is not complete, the oldest first."""
        return list(cls._half)

    def evict(self) -> None:
        self._arrived()
        self.transport.abort()

    def _arrived(self) -> None:
        self._half.pop(self, None)
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _give_up(self) -> None:
        cycle: Any = self.cycle
        self._due = None
        if cycle is None or cycle.response_complete:  # slow bodies are the application's business
            self._arrived()
            self.transport.close()


class LengthCheck:
    """Refuses requests whose body has two lengths, and closes: a proxy that goes by the other one would see another request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with 400."""
        app: ASGIApp = self._app
        if {b"content-length", b"transfer-encoding"} <= {
            key for key, _ in scope.get("headers", ())
        }:
            words = "send Content-Length or Transfer-Encoding, not both"
            app = PlainTextResponse(words, 400, {"connection": "close"})
        await app(scope, receive, send)


class HostCheck:
    """Refuses requests whose Host header is not one of `names`: a foreign page can point its own name here (DNS rebinding).

    refuse: writes an error's response.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: tuple[str, ...],
        refuse: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self._app, self._refuse = app, refuse
        self._names = {name.lower().removeprefix("[").removesuffix("]") for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with 400."""
        name = self._name(scope) if scope["type"] == "http" else ""
        if scope["type"] == "http" and name not in self._names:
            detail = f"Host is {name[:80]!r}, and the server is not called so (--allow-host NAME)"
            response = await self._refuse(Request(scope), HTTPException(400, detail))
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _name(scope: Scope) -> str:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        try:
            return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return ""
