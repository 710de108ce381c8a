"""What gets in, and what is recorded of it: API keys, bodies, a line of JSON for each request, and metrics. Never texts."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyspec.batch.run import Batch
from pyspec.serve import lines_of
from pyspec.serve.interface import PendingRequest
from pyspec.text.parts import Result, safe

REQUEST = "pyspec.request"  # key of the `PendingRequest` in a request's scope
UNRECORDED = ("/health", "/metrics")  # paths that programs poll, and that are not recorded
_LONGEST_PATH = 60
_GONE = 499  # status of a request whose client has left
_BODY_S = 30.0  # time limit for receiving a request's body


class LengthCheck:
    """Refuses requests whose body has two lengths, and closes: a proxy that goes by the other one would see another request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._app
        named = {key for key, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= named:
            words = "send Content-Length or Transfer-Encoding, not both"
            app = PlainTextResponse(words, 400, {"connection": "close"})
        await app(scope, receive, send)


class AccessLog:
    """Passes what is recorded of each request to `write` at its end."""

    def __init__(self, app: ASGIApp, write: Callable[[dict[str, Any]], Any]) -> None:
        self._app, self._write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNRECORDED:
            await self._app(scope, receive, send)
            return
        begun, status, sent = time.perf_counter(), 0, 0

        async def metered(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, metered)
        finally:
            entry = {
                "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
                "client": (scope.get("client") or [None])[0],
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round(1e3 * (time.perf_counter() - begun), 1),
                "sent": sent,
                **facts(scope.get(REQUEST)),
            }
            self._write(entry)


def as_text(entry: dict[str, Any]) -> str:
    """A line of `AccessLog` for people: method, path, model, tokens, time, and whether the answer was cancelled."""
    path, seconds = safe(entry["path"])[:_LONGEST_PATH], entry["ms"] / 1e3
    words = [f"{entry['time'][11:19]} {entry['method']} {path} {entry['status'] or 'no answer'}"]
    if "prompt_tokens" in entry:
        read, made = entry["prompt_tokens"], entry["completion_tokens"]
        words.append(f"{entry['model']}, {read} tokens read, {made} made")
    cancelled = entry["status"] == _GONE or "cancelled" in entry.get("finish_reasons", ())
    unfinished = len(entry.get("finish_reasons", ())) < entry.get("answers", 0)
    words.append(f"{seconds:.2f} s" + (", cancelled" if cancelled or unfinished else ""))
    return ", ".join(words)


def facts(pending: PendingRequest | None) -> dict[str, Any]:
    """Figures of a request: tokens, time to the first one, finish reasons."""
    if pending is None:
        return {}
    ended = [choice for choice in pending.choices if choice.result is not None]
    results = [choice.result for choice in ended]
    known: dict[str, Any] = {
        "id": pending.name,
        "model": pending.serving.model,
        "stream": bool(pending.body.stream),
        "answers": len(pending.answers),
        "prompt_tokens": pending.prompt_tokens,
        "prompt_kept": sum(result.speculation.get("prompt_kept", 0) for result in results),
        "completion_tokens": sum(result.usage.completion_tokens for result in results),
        "finish_reasons": [result.finish_reason for result in results],
    }
    if ended:
        known["first_token_ms"] = min(choice.times["first_token_ms"] for choice in ended)
    return known


class Keys:
    """A server's API keys, one a line; None for a server that needs none."""

    def __init__(self, lines: str | None) -> None:
        self._keys = None if lines is None else [key.encode() for key in lines_of(lines)]

    def holder(self, headers: Mapping[str, str]) -> str:
        """A name for the holder of a request's key, "" where there is one key at most. Raises HTTPException without a valid key.

        The key may be in either header, since a proxy may use the other for its own credentials.
        """
        if self._keys is None:
            return ""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        told = (bearer.strip(" ") or scheme, headers.get("x-api-key", ""))
        sent = [one.encode("latin-1") for one in told]  # the bytes that came
        # every pair is compared, so that the time taken reveals nothing
        found = [key for key in self._keys for one in sent if hmac.compare_digest(one, key)]
        if not found:
            what = "the API key is missing or wrong: Authorization: Bearer KEY, or x-api-key: KEY"
            raise HTTPException(401, what)
        return hashlib.sha256(found[0]).hexdigest()[:32] if len(self._keys) > 1 else ""


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


_COUNTED = {
    "drafted": "Tokens drafted.",
    "verified": "Drafted tokens that the target checked.",
    "accepted": "Drafted tokens that were accepted, relaxed ones included.",
    "forced": "Accepted tokens that a schema or grammar had drafted.",
    "relaxed": "Runner-up tokens that the margin rule accepted.",
    "relaxed_nats": "Sum of the gaps of relaxed tokens, nats.",
}
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of requests and finished answers, and gauges of running ones. batches: those of the loaded models."""

    def __init__(self, batches: Callable[[], Sequence[Batch]]) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"pyspec_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"pyspec_{name}_seconds", text, buckets=_BUCKETS, registry=registry)

        self._requests = counter("requests", "Requests that were begun.", ["kind"])
        self._answers = counter("answers", "Answers by how they ended.", ["reason"])
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._tokens = counter("tokens", "Tokens of answers.")
        self._counts = {
            name: counter(f"{name}_tokens" if name != "relaxed_nats" else name, text)
            for name, text in _COUNTED.items()
        }
        self._first = histogram("first_token", "Until the first token.")
        self._whole = histogram("answer", "Until the last token.")
        now: dict[str, tuple[str, Callable[[], float]]] = {
            "running": ("Answers that run.", lambda: sum(batch.load[0] for batch in batches())),
            "waiting": (
                "Answers that wait for a sequence.",
                lambda: sum(batch.load[1] for batch in batches()),
            ),
            "sequences": (
                "Answers that may run at once.",
                lambda: sum(batch.parallel for batch in batches()),
            ),
            "times_plain": (
                "Times as fast as without drafts by the measured cost curve; 0 where that is not known.",
                lambda: max((batch.speed for batch in batches()), default=0.0),
            ),
        }
        for name, (text, value) in now.items():
            Gauge(f"pyspec_{name}", text, registry=registry).set_function(value)

    def request_received(self, kind: str, prompt_tokens: int) -> None:
        self._requests.labels(kind).inc()
        self._prompt.inc(prompt_tokens)

    def answered(self, result: Result, timings: dict[str, float]) -> None:
        """Count an answer that has ended, cancelled ones included."""
        self._answers.labels(result.finish_reason or "failed").inc()
        self._tokens.inc(result.usage.completion_tokens)
        for name, metric in self._counts.items():
            metric.inc(result.speculation.get(name, 0))
        if result.usage.completion_tokens:
            self._first.observe(1e-3 * timings["first_token_ms"])
        self._whole.observe(1e-3 * timings["total_ms"])

    def text(self) -> bytes:
        return generate_latest(self._registry)
