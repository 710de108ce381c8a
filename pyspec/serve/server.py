"""uvicorn's server as it is used here: it ends in order, and takes no body of two lengths, too long or too late."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from types import FrameType

import anyio
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pyspec.serve.fleet import Fleet

_BODY_S = 30.0
# time limit for receiving a request's body


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


async def whole_body(request: Request, most: int) -> bytes:
    """A request's body of at most `most` bytes. Raises HTTPException if it is too long or too slow."""
    data = bytearray()
    try:
        with anyio.fail_after(_BODY_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > most:
                    raise HTTPException(413, f"the body is longer than {most} bytes")
    except ClientDisconnect:
        raise HTTPException(499, "the client has gone") from None
    except TimeoutError:
        raise HTTPException(408, f"the body did not come in {_BODY_S:.0f} s") from None
    return bytes(data)


log = logging.getLogger("pyspec")


class DrainingServer(uvicorn.Server):
    """uvicorn's server. SIGTERM gives running answers `seconds` to end; a second one, or SIGINT, cancels them.

    uvicorn raises the signals again as soon as it has ended; here `repeat_signal` does so once everything is written.
    """

    def __init__(self, config: uvicorn.Config, fleet: Fleet, seconds: float) -> None:
        super().__init__(config)
        self._fleet, self._seconds = fleet, seconds
        self._cuts = False
        self._last: int | None = None

    async def main_loop(self) -> None:
        """Serve until a signal comes; then refuse requests, and look for another signal, until those that run have ended."""
        await super().main_loop()
        drain = asyncio.ensure_future(self._fleet.drain(0.0 if self._cuts else self._seconds))
        while not drain.done() and not self._cuts:
            await asyncio.wait({drain}, timeout=0.05)
        await asyncio.gather(drain, self._fleet.drain(0.0))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._cuts = sig != signal.SIGTERM or self.should_exit
        self._last, self.should_exit = sig, True

    def repeat_signal(self) -> None:
        """End the process by the last signal received, if any."""
        if self._last is not None:
            signal.raise_signal(self._last)


def leave_hung(fleet: Fleet) -> None:
    """End the process with status 1 if an engine hangs: freeing its model would crash. The default model is freed if possible."""
    hung = fleet.hung
    if not hung:
        return
    if fleet.default not in hung:
        fleet.default.batch.close()
    sys.stdout.flush()
    logging.shutdown()
    os._exit(1)
