"""What the server tells Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from pyspec.batch.records import Result
    from pyspec.batch.run import Batch

_COUNTED = {
    "drafted": "Tokens drafted.",
    "verified": "Drafted tokens that the target checked.",
    "accepted": "Drafted tokens that were accepted, relaxed ones included.",
    "relaxed": "Runner-up tokens that the margin rule accepted.",
    "relaxed_nats": "Sum of the gaps of relaxed tokens, nats.",
}
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of finished answers, and gauges of what goes on."""

    def __init__(self, batch: Batch) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"pyspec_{name}", text, labels, registry=registry)

        self._requests = counter("requests", "Requests that were begun.", ["kind"])
        self._answers = counter("answers", "Answers by how they ended.", ["reason"])
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._tokens = counter("tokens", "Tokens of answers.")
        self._counts = {
            name: counter(f"{name}_tokens" if name != "relaxed_nats" else name, text)
            for name, text in _COUNTED.items()
        }
        self._first = Histogram(
            "pyspec_first_token_seconds",
            "Until the first token.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._whole = Histogram(
            "pyspec_answer_seconds", "Until the last token.", buckets=_BUCKETS, registry=registry
        )
        registry.register(_Now(batch))

    def asked(self, kind: str) -> None:
        """A request was begun."""
        self._requests.labels(kind).inc()

    def answered(self, result: Result, timings: dict[str, float]) -> None:
        """An answer ended."""
        self._answers.labels(result.finish_reason or "failed").inc()
        self._prompt.inc(result.usage.prompt_tokens)
        self._tokens.inc(result.usage.completion_tokens)
        for name, metric in self._counts.items():
            metric.inc(result.speculation.get(name, 0))
        self._first.observe(1e-3 * timings["first_token_ms"])
        self._whole.observe(1e-3 * timings["total_ms"])

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Now(Collector):
    """What the batch says when it is asked."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def collect(self) -> Iterable[Any]:
        batch = self._batch
        running, waiting = batch.load
        values = {
            "running": ("Answers that run.", running),
            "waiting": ("Answers that wait for a sequence.", waiting),
            "sequences": ("Answers that may run at once.", batch.parallel),
            "speed_against_plain": (
                "Times as fast as without drafts by the measured cost curve; 0 where nothing was drafted.",
                batch.speed,
            ),
        }
        for name, (text, value) in values.items():
            yield GaugeMetricFamily(f"pyspec_{name}", text, value=value)
