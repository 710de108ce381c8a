"""What a server does under load: tokens a second, first tokens, errors and memory, of `pyspec serve` and of llama-server.

    python bench/serve.py MODEL.gguf QUESTIONS.jsonl [--contenders pyspec,llama-server] [--server PATH/llama-server]
        [--clients 16] [--requests 64] [--tokens 96] [--ctx 2048] [--threads 2] [--repeat 1] [--whole]
        [--title TITLE] [--out DIR/NAME.json]

QUESTIONS has `turns` (the first one is asked) or `prompt` a line; they are asked over and over until --requests are
done, by --clients at once, each the next one when its last has ended. Answers are streamed unless --whole. Both servers
have as many slots as there are clients, and --ctx positions each; temperature 0, strict. Every contender runs in a process of
its own; they take turns, --repeat times. The table has medians; memory is the resident set after a tenth of the
requests and at the end, and stderr tells it after each tenth.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec
from comparison import Comparison, circumstances, made, publish

from pyspec.measure.report import table
from pyspec.measure.usage import resident_now

WAIT_S = 120
INTRO = (
    "What clients of a server see: each asks the next question when its last answer has ended. Answers are streamed; both "
    "servers have a slot for each client. First tokens and whole answers are seconds; memory is the resident set after a "
    'tenth of the requests and at the end. "pyspec" is `pyspec serve` as it comes, "pyspec:none" the same without drafts.'
)
HEAD = ("contender", "tokens/s", "of llama-server", "first p50", "first p95", "whole p50", "errors",
        "MB then", "MB at the end")  # fmt: skip
PEER = "llama-server"


class Served(msgspec.Struct):
    """What clients saw of one contender; medians over runs. first, late, whole: seconds. then, end: MB."""

    name: str
    rate: float
    first: float
    late: float
    whole: float
    errors: int
    then: float
    end: float


class ServeResults(Comparison, kw_only=True):
    """A run over one target, as `NAME.json` beside the page."""

    clients: int
    requests: int
    contenders: list[Served]


def main(words: list[str] | None = None) -> None:
    """Measure all contenders, print a Markdown table, and write page and results to --out."""
    given = list(sys.argv[1:] if words is None else words)
    options = arguments(given)
    found: dict[str, list[dict[str, float]]] = {
        contender: [] for contender in options.contenders.split(",")
    }
    for _ in range(options.repeat):
        for contender, runs in found.items():
            runs.append(measure(options, contender))
            print(contender, json.dumps(runs[-1]), file=sys.stderr, flush=True)
    results = ServeResults(
        **circumstances("serve", options, given),
        clients=options.clients,
        requests=options.requests,
        contenders=[summary(contender, runs) for contender, runs in found.items()],
    )
    publish(results, serve_table(results), options.out, write_page)


def summary(contender: str, runs: list[dict[str, float]]) -> Served:
    """A contender's medians, and all of its errors."""
    middle = {key: median(run[key] for run in runs) for key in runs[0] if key != "errors"}
    return Served(name=contender, errors=int(sum(run["errors"] for run in runs)), **middle)


def serve_table(found: ServeResults) -> str:
    """What clients saw, a row a contender."""
    peer = next((one.rate for one in found.contenders if one.name == PEER), 0.0)
    return table(
        HEAD,
        [
            [one.name, f"{one.rate:.1f}", f"{one.rate / peer:.2f}" if peer else "-",
             *(f"{value:.2f}" for value in (one.first, one.late, one.whole)),
             str(one.errors), f"{one.then:.0f}", f"{one.end:.0f}"]
            for one in found.contenders
        ],
    )  # fmt: skip


def write_page(folder: Path) -> None:
    """The page of all results in a folder."""
    parts = ["# Servers under load", INTRO]
    for path in sorted(folder.glob("*.json")):
        found = msgspec.json.decode(path.read_bytes(), type=ServeResults)
        what = f"{found.clients} clients, {found.requests} requests of at most {found.max_tokens} tokens"
        parts += [f"## {found.title}", made(found, what), serve_table(found)]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("questions", type=Path)
    parser.add_argument("--contenders", default="pyspec")
    parser.add_argument("--server", default="llama-server")
    parser.add_argument("--title", default="")
    parser.add_argument("--out", type=Path, help="NAME.json; the page goes beside it")
    parser.add_argument("--whole", action="store_true", help="ask for whole answers, not streams")
    numbers = {"clients": 16, "requests": 64, "tokens": 96, "ctx": 2048, "threads": 2, "repeat": 1}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args(words)


def command(options: argparse.Namespace, contender: str, port: int) -> list[str]:
    """How a server is started."""
    n, threads = str(options.clients), str(options.threads)
    if contender == PEER:
        context = ["-c", str(options.clients * options.ctx), "-np", n]
        return [options.server, "-m", options.model, *context, "-t", threads, "-tb", threads,
                "--port", str(port), "--cache-ram", "0", "--log-disable"]  # fmt: skip
    draft = contender.partition(":")[2] or "auto"
    return [sys.executable, "-m", "pyspec", "serve", "-m", options.model, "--parallel", n, "-c",
            str(options.ctx), "-t", threads, "--port", str(port), "--draft", draft]  # fmt: skip


@contextmanager
def running(options: argparse.Namespace, contender: str) -> Iterator[tuple[int, int]]:
    """A server that is up: its port and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(options, contender, port), **quiet)  # type: ignore[call-overload]
    try:
        for _ in range(10 * WAIT_S):
            if process.poll() is not None:
                raise SystemExit(f"{contender} ended with {process.returncode}")
            try:
                if is_healthy(port):
                    break
            except OSError:
                pass
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def is_healthy(port: int) -> bool:
    """Whether the server there takes requests."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as connection:
        connection.request("GET", "/health")
        with connection.getresponse() as response:
            return response.status == 200


def measure(options: argparse.Namespace, contender: str) -> dict[str, float]:
    """One contender under load."""
    texts = questions(options.questions)
    with running(options, contender) as (port, pid):
        ask(port, texts[0], options, 1)
        load = Load(options, port, pid, texts)
        clients = [threading.Thread(target=load.client) for _ in range(options.clients)]
        start = time.perf_counter()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        seconds = time.perf_counter() - start
        end = resident_now(pid)
    firsts = [answer[1] for answer in load.answers]
    return {
        "rate": sum(answer[0] for answer in load.answers) / seconds,
        "first": median(firsts),
        "late": quantiles(firsts, n=20)[-1],
        "whole": median(answer[2] for answer in load.answers),
        "errors": load.errors,
        "then": load.then,
        "end": end,
    }


class Load:
    """What all clients share: the requests that are left, and what came of those done."""

    def __init__(self, options: argparse.Namespace, port: int, pid: int, texts: list[str]) -> None:
        self.options, self.port, self.pid, self.texts = options, port, pid, texts
        self.answers: list[tuple[int, float, float]] = []
        self.errors, self.then = 0, 0.0
        self._next = 0
        self._lock = threading.Lock()

    def client(self) -> None:
        """Ask one after another until none is left."""
        while (number := self._take()) is not None:
            text = self.texts[number % len(self.texts)]
            try:
                self.answers.append(ask(self.port, text, self.options, self.options.tokens))
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                self.errors += 1
                print(f"request {number}: {error!r}", file=sys.stderr)

    def _take(self) -> int | None:
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._look(number)
            return number if number < self.options.requests else None

    def _look(self, number: int) -> None:
        """Memory after each tenth of the requests, for whoever waits."""
        tenth = max(1, self.options.requests // 10)
        if number % tenth == 0 and number <= self.options.requests:
            held = resident_now(self.pid)
            self.then = held if number == tenth else self.then
            said = (
                f"{number} of {self.options.requests} requests: {held:.0f} MB, {self.errors} errors"
            )
            print(said, file=sys.stderr, flush=True)


def ask(port: int, text: str, options: argparse.Namespace, tokens: int) -> tuple[int, float, float]:
    """One answer: its tokens, seconds until its first text, and until its end."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    body |= {"temperature": 0, "stream": not options.whole}
    if not options.whole:
        body["stream_options"] = {"include_usage": True}
    start, first = time.perf_counter(), 0.0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        head = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"{response.status}: {response.read(200)!r}")
        last = line = b""
        for line in response:
            if b'"content":"' in line and b'"content":""' not in line:
                first = first or time.perf_counter() - start
            last = line if b'"usage"' in line else last
    finally:
        connection.close()
    end = time.perf_counter() - start
    if not last:
        raise ValueError(f"the stream ended without usage: {line[:300]!r}")
    usage = json.loads(last.removeprefix(b"data: "))["usage"]
    return int(usage["completion_tokens"]), first or end, end


def questions(path: Path) -> list[str]:
    """The first turns."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row["turns"][0] if "turns" in row else row["prompt"] for row in rows]


if __name__ == "__main__":
    main()
