"""Records of finished requests, a line of JSON each. They never hold texts."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyspec.screen.words import safe
from pyspec.serve.pending import PendingRequest

REQUEST = "pyspec.request"
"""Key of the `PendingRequest` in a request's scope."""

REQUEST_ID = "pyspec.request_id"
"""Key of the request's id in its scope: the one in the response's headers."""

UNRECORDED = ("/health", "/v1/health", "/health/live", "/health/ready", "/metrics")
"""Paths that programs poll, and that are not recorded."""


class AccessLog:
    """Passes a line of JSON to `write` at the end of each request."""

    def __init__(self, app: ASGIApp, write: Callable[[str], Any]) -> None:
        self._app, self._write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and record it."""
        if scope["type"] != "http" or scope["path"] in UNRECORDED:
            await self._app(scope, receive, send)
            return
        begun, seen = time.perf_counter(), _ResponseMeter(send)
        try:
            await self._app(scope, receive, seen)
        finally:
            line = {
                "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
                "request": scope.get(REQUEST_ID),
                "client": (scope.get("client") or [None])[0],
                "method": scope["method"],
                "path": scope["path"],
                "status": seen.status,
                "ms": round(1e3 * (time.perf_counter() - begun), 1),
                "sent": seen.sent,
                **facts(scope.get(REQUEST)),
            }
            self._write(msgspec.json.encode(line).decode())


class Activity:
    """Middleware that knows how long the server has been idle. Health checks and metrics do not count as requests."""

    def __init__(self) -> None:
        self._running, self._last = 0, time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while any runs."""
        return 0.0 if self._running else time.monotonic() - self._last

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application, watched."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in UNRECORDED:
                await app(scope, receive, send)
                return
            self._running += 1
            try:
                await app(scope, receive, send)
            finally:
                self._running -= 1
                self._last = time.monotonic()

        return watched


_LONGEST_PATH = 60


def as_text(line: str) -> str:
    """A line of `AccessLog` for people: method, path, model, tokens, time, and whether the answer was cancelled."""
    entry = msgspec.json.decode(line)
    path, seconds = safe(entry["path"])[:_LONGEST_PATH], entry["ms"] / 1e3
    words = [f"{entry['time'][11:19]} {entry['method']} {path} {entry['status'] or 'no answer'}"]
    if "prompt_tokens" in entry:
        read, made = entry["prompt_tokens"], entry["completion_tokens"]
        words.append(f"{entry['model']}, {read} tokens read, {made} made")
    cancelled = entry["status"] == _GONE or "cancelled" in entry.get("finish_reasons", ())
    unfinished = len(entry.get("finish_reasons", ())) < entry.get("answers", 0)
    words.append(f"{seconds:.2f} s" + (", cancelled" if cancelled or unfinished else ""))
    return ", ".join(words)


_GONE = 499
"""Status of a request whose client has left."""


class _ResponseMeter:
    """Counts the bytes of a response, and keeps its status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.sent = send, 0, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.sent += len(message.get("body", b""))
        await self._send(message)


def facts(pending: PendingRequest | None) -> dict[str, Any]:
    """Figures of a request: tokens, time to the first one, finish reasons."""
    if pending is None:
        return {}
    ended = [result for result, _ in pending.ended.values()]
    known: dict[str, Any] = {
        "id": pending.name,
        "model": pending.serving.model,
        "stream": pending.body.streams,
        "answers": len(pending.jobs),
        "prompt_tokens": pending.prompt_tokens,
        "prompt_kept": sum(result.speculation.get("prompt_kept", 0) for result in ended),
        "completion_tokens": sum(result.usage.completion_tokens for result in ended),
        "finish_reasons": [result.finish_reason for result in ended],
    }
    if pending.ended:
        known["first_token_ms"] = min(
            times["first_token_ms"] for _, times in pending.ended.values()
        )
    return known
