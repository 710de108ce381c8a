"""What is told of each request once it has ended: a line of JSON, a span of OpenTelemetry. Never a text."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyspec.screen.display import safe
from pyspec.serve.pending import PendingRequest

ASKED = "pyspec.asked"
"""Where a request's scope keeps its `PendingRequest`."""

UNTOLD = ("/health", "/v1/health", "/health/live", "/health/ready", "/metrics")
"""Paths that programs ask again and again, of which nothing is told."""


class AccessLog:
    """Writes a line of JSON for each request to `write`, as it ends."""

    def __init__(self, app: ASGIApp, write: Callable[[str], Any]) -> None:
        self._app, self._write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and tell of it."""
        if scope["type"] != "http" or scope["path"] in UNTOLD:
            await self._app(scope, receive, send)
            return
        begun, seen = time.perf_counter(), _ResponseMeter(send)
        try:
            await self._app(scope, receive, seen)
        finally:
            line = {
                "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
                "client": (scope.get("client") or [None])[0],
                "method": scope["method"],
                "path": scope["path"],
                "status": seen.status,
                "ms": round(1e3 * (time.perf_counter() - begun), 1),
                "sent": seen.sent,
                **facts(scope.get(ASKED)),
            }
            self._write(msgspec.json.encode(line).decode())


class Activity:
    """Knows how long nothing was asked; of health checks and metrics it takes no notice. It is in front of an application."""

    def __init__(self) -> None:
        self._running, self._last = 0, time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while any runs."""
        return 0.0 if self._running else time.monotonic() - self._last

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application, watched."""

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in UNTOLD:
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


def in_words(line: str) -> str:
    """What `AccessLog` writes, for people: method, path, model, tokens, time, and whether the answer was cancelled."""
    told = msgspec.json.decode(line)
    path, seconds = safe(told["path"])[:_LONGEST_PATH], told["ms"] / 1e3
    words = [f"{told['time'][11:19]} {told['method']} {path} {told['status'] or 'no answer'}"]
    if "prompt_tokens" in told:
        words.append(
            f"{told['model']}, {told['prompt_tokens']} + {told['completion_tokens']} tokens"
        )
    cancelled = told["status"] == _GONE or "cancelled" in told.get("finish_reasons", ())
    unfinished = len(told.get("finish_reasons", ())) < told.get("answers", 0)
    words.append(f"{seconds:.2f} s" + (", cancelled" if cancelled or unfinished else ""))
    return ", ".join(words)


_GONE = 499
"""Status of a request whose client has left."""


class Spans:
    """Makes each request for answers a span, named as OpenTelemetry's conventions for models have it.

    trace, propagate: OpenTelemetry's modules of these names; without the package there are no spans.
    """

    def __init__(self, app: ASGIApp, trace: Any, propagate: Any) -> None:
        self._app, self._trace, self._propagate = app, trace, propagate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, inside its span."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        tracer = self._trace.get_tracer("pyspec")
        parent = self._propagate.extract(headers)
        kind = self._trace.SpanKind.SERVER
        name = f"POST {scope['path']}"
        with tracer.start_as_current_span(name, context=parent, kind=kind) as span:
            seen = _ResponseMeter(send)
            try:
                await self._app(scope, receive, seen)
            finally:
                for key, value in _attributes(scope.get(ASKED)).items():
                    span.set_attribute(key, value)
                span.set_attribute("url.path", scope["path"])
                span.set_attribute("http.response.status_code", seen.status)


class _ResponseMeter:
    """Notes what a response sends."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.sent = send, 0, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.sent += len(message.get("body", b""))
        await self._send(message)


def facts(asked: PendingRequest | None) -> dict[str, Any]:
    """What is known of a request's answers: how many tokens, how soon, why they ended."""
    if asked is None:
        return {}
    ended = [result for result, _ in asked.ended.values()]
    told: dict[str, Any] = {
        "id": asked.name,
        "model": asked.serving.model,
        "stream": bool(asked.body.stream),
        "answers": len(asked.jobs),
        "prompt_tokens": asked.prompt_tokens,
        "prompt_kept": sum(result.speculation.get("prompt_kept", 0) for result in ended),
        "completion_tokens": sum(result.usage.completion_tokens for result in ended),
        "finish_reasons": [result.finish_reason for result in ended],
    }
    if asked.ended:
        told["first_token_ms"] = min(times["first_token_ms"] for _, times in asked.ended.values())
    return told


def _attributes(asked: PendingRequest | None) -> dict[str, Any]:
    """The same under the names of OpenTelemetry's conventions for generative models."""
    told = facts(asked)
    if asked is None:
        return {}
    return {
        "gen_ai.operation.name": "chat" if asked.is_chat else "text_completion",
        "gen_ai.provider.name": "pyspec",
        "gen_ai.request.model": asked.body.model or told["model"],
        "gen_ai.response.model": told["model"],
        "gen_ai.response.id": told["id"],
        "gen_ai.usage.input_tokens": told["prompt_tokens"],
        "gen_ai.usage.output_tokens": told["completion_tokens"],
        "gen_ai.response.finish_reasons": [str(reason) for reason in told["finish_reasons"]],
    }
