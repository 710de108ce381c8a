"""What replicas of the server gain: requests a second on Ray Serve, with one replica and with several.

A contender is REPLICASxTHREADS: 1x2 is one replica of two threads, 2x1 two replicas of one thread each. --clients send the first
turns of QUESTIONS, in Spec-Bench's format, until --requests are done; each sends the next when its last answer has ended. Answers
come whole, at temperature 0, strict. Each replica runs as many answers at once as its share of the clients. Contenders take
turns, --repeat times, each on its own replicas; the table has medians. --out FILE stores them, and writes the page of all such
files next to it. Needs the extra [ray-serve]; Ray is started here.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from urllib.request import ProxyHandler, Request, build_opener

from common import Comparison, Figures, arguments, in_turns, medians, publish
from measure.report import table

from pyspec.profiling.questions import load_questions

OPTIONS = {
    "contenders": "1x1,1x2,2x1", "clients": 8, "requests": 48, "tokens": 32, "ctx": 2048, "draft": "auto", "repeat": 1,
    "title": "", "out": None,
}  # fmt: skip
HEAD = ("replicas x threads", "requests/s", "of the first", "of one with all threads", "tokens/s", "whole p50",
        "errors")  # fmt: skip
_WEB = build_opener(ProxyHandler({}))
_ANSWER_S = 600.0


class ReplicaResults(Comparison, kw_only=True):
    """Results for one target. For each contender: rate (requests a second), tokens (a second), whole (p50, seconds), errors."""

    heading = "Replicas over Ray Serve"
    intro = (
        "A contender is a number of replicas and of threads in each, on one machine: 2x1 is two replicas with one thread each. "
        "Each client sends the next question when its last answer has ended; answers come whole."
    )
    work = "{0.clients} clients, {0.requests} requests of at most {0.max_tokens} tokens"

    clients: int
    requests: int

    def table(self) -> str:
        """A row for each contender, relative to the first one and to one replica with all of its threads."""
        rows = []
        for one in self.contenders:
            whole = self.find(f"1x{threads_of(one['name'])}")
            beside = [
                one["rate"] / base["rate"] if base else None for base in (self.contenders[0], whole)
            ]
            rows.append(
                [
                    one["name"],
                    f"{one['rate']:.2f}",
                    *("-" if times is None else f"{times:.2f}" for times in beside),
                    f"{one['tokens']:.1f}",
                    f"{one['whole']:.2f}",
                    f"{one['errors']:.0f}",
                ]
            )
        return table(HEAD, rows)


def threads_of(contender: str) -> int:
    """Threads of all replicas of a contender."""
    replicas, threads = map(int, contender.split("x"))
    return replicas * threads


@contextmanager
def deployed(options: Namespace, contender: str) -> Iterator[str]:
    """Deploy a contender's replicas, and yield their URL."""
    from ray import serve  # noqa: PLC0415 - an extra that few install

    from pyspec.cluster.serve import app  # noqa: PLC0415 - the same

    replicas, threads = map(int, contender.split("x"))
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    served = app(
        options.model,
        replicas=replicas,
        n_threads=threads,
        n_threads_batch=threads,
        n_ctx=options.ctx,
        parallel=-(-options.clients // replicas),
        draft=options.draft,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(served, name="pyspec")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()


def ask(url: str, text: str, tokens: int) -> tuple[int, float]:
    """Request an answer; return its tokens and the seconds that it took."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}
    head = {"Content-Type": "application/json"}
    asked = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)  # noqa: S310 - its own
    start = time.perf_counter()
    with _WEB.open(asked, timeout=_ANSWER_S) as response:
        told = json.loads(response.read())
    return int(told["usage"]["completion_tokens"]), time.perf_counter() - start


def measure(options: Namespace, contender: str, texts: list[str]) -> Figures:
    """Measure one contender under load."""
    with deployed(options, contender) as url:

        def request(number: int) -> tuple[int, float] | None:
            try:
                return ask(url, texts[number % len(texts)], options.tokens)
            except (OSError, KeyError, ValueError) as error:
                print(f"request {number}: {error!r}", file=sys.stderr)
                return None

        with ThreadPoolExecutor(options.clients) as clients:
            list(clients.map(request, range(options.clients)))  # every replica has answered
            start = time.perf_counter()
            found = list(clients.map(request, range(options.requests)))
            seconds = time.perf_counter() - start
    answers = [each for each in found if each]
    return {
        "rate": len(answers) / seconds,
        "tokens": sum(n for n, _ in answers) / seconds,
        "whole": median(took for _, took in answers),
        "errors": len(found) - len(answers),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure all contenders, print a Markdown table, and write page and results to --out."""
    given = list(sys.argv[1:] if words is None else words)
    options = arguments(__doc__, given, "model", "questions", **OPTIONS)
    import ray  # noqa: PLC0415 - an extra that few install

    texts = [question.turns[0] for question in load_questions(Path(options.questions))]
    names = options.contenders.split(",")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=16, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    try:
        runs = in_turns(names, options.repeat, lambda one: measure(options, one, texts))
    finally:
        ray.shutdown()
    options.threads = max(map(threads_of, names))
    found = {one: medians(those) for one, those in runs.items()}
    counts = {"clients": options.clients, "requests": options.requests}
    publish(ReplicaResults, "replicas", options, given, found, **counts)


if __name__ == "__main__":
    main()
