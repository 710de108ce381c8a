"""A server's metrics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pyspec.batch.run import Batch
from pyspec.text.result import Result

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
        """Count a request that has begun."""
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
