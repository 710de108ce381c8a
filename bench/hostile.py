"""How long a stream waits for a token while another client attacks the server without pause.

A server of the target is started with its defaults. First one stream runs alone, then the same stream next to each kind of
attack, which --attackers processes send over and over: grammars that never end, at once or later on, schemas, bodies with too
much in them, half-sent requests. The table has the longest wait between two tokens of the stream and the median wait, in
milliseconds, and how the attackers' requests ended.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing import Event, Process, Queue
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from common import arguments
from measure.contenders import ServerProcess
from measure.report import table

WORST_MS = 1000.0
"""Longest wait that a stream should have."""

NEW = "made anew"
"""Placeholder that is replaced in each request."""

NESTED = 'root ::= ((("a"?){100}){100}){100}'
LATER = 'root ::= [a-z ]{30} bomb\nbomb ::= [a-z ] bomb "b" | [a-z ] bomb "c" | [a-z ]'
DEAD = "root ::= [a-z ] [^\\U00000000-\\U0010FFFF]"


def grammar(text: str) -> dict[str, Any]:
    """A chat body with a grammar."""
    return chat(grammar=text, max_tokens=200)


def chat(**more: Any) -> dict[str, Any]:
    """A chat body."""
    return {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 64, **more}


def schema(value: Any) -> dict[str, Any]:
    """A chat body that asks for JSON that follows a schema."""
    return chat(response_format={"type": "json_object", "schema": value})


def _wide() -> dict[str, Any]:
    names = {f"p{i}": {} for i in range(500)}
    return schema({"allOf": [{"$ref": "#/$defs/a"}] * 2000, "$defs": {"a": {"properties": names}}})


ATTACKS: dict[str, Callable[[], dict[str, Any]]] = {
    "grammar of 100 KB of [": lambda: grammar("root ::= " + "[" * 100_000),
    "grammar of nested repetitions": lambda: grammar(f"{NESTED} # {NEW}"),
    "grammar of 60,000 alternatives": lambda: grammar(
        "root ::= " + " | ".join(f'"a{i}"' for i in range(60_000)) + f" # {NEW}"
    ),
    "grammar that explodes later": lambda: grammar(f"{LATER} # {NEW}"),
    "grammar that ends nowhere": lambda: grammar(DEAD),
    "schema that takes a minute": _wide,
    "200,000 prompts, 16 answers each": lambda: {"prompt": ["a"] * 200_000, "n": 16},
    "deep JSON": lambda: chat(grammar='root ::= "a"', x=json.loads("[" * 900 + "]" * 900)),
    "90,000 stop strings": lambda: chat(stop=["x" * (i % 9 + 1) for i in range(90_000)]),
    "25,000 messages": lambda: {"messages": [{"role": "user", "content": ""}] * 25_000},
    "2,000 messages": lambda: {"messages": [{"role": "user", "content": "x" * 400}] * 2_000},
    "one letter, 900 KB": lambda: {"messages": [{"role": "user", "content": "a" * 900_000}]},
}
HALF = "half-sent requests"


def attack(port: int, name: str, stopped: Any, ended: Any) -> None:
    """Send one kind of request until stopped, in a separate process; then report how often each status came."""
    os.nice(10)  # a remote client would not use the server's cores
    found = Counter[str]()
    (half if name == HALF else whole)(port, name, stopped, found)
    ended.put(found)


def whole(port: int, name: str, stopped: Any, found: Counter[str]) -> None:
    """Send whole requests with bodies."""
    body = ATTACKS[name]()
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    data, head = json.dumps(body), {"Content-Type": "application/json"}
    while not stopped.is_set():
        new = data.replace(NEW, str(random.random()))  # noqa: S311 - so that no verdict is known
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", path, new, head)
            found[str(connection.getresponse().status)] += 1
            connection.close()
        except OSError as error:
            found[type(error).__name__] += 1


def half(port: int, _name: str, stopped: Any, found: Counter[str]) -> None:
    """Send requests whose headers do not end."""
    held: list[socket.socket] = []
    while not stopped.is_set():
        try:
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            held[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
            found["sent"] += 1
        except OSError as error:
            found[type(error).__name__] += 1
        if len(held) > 200:
            held.pop(0).close()


@contextmanager
def attackers(port: int, name: str, count: int) -> Iterator[Counter[str]]:
    """Run `count` attacking processes; the counter yielded is filled at the end with how their requests ended."""
    stopped, ended, total = Event(), Queue(), Counter[str]()
    processes = [
        Process(target=attack, args=(port, name, stopped, ended), daemon=True) for _ in range(count)
    ]
    for process in processes:
        process.start()
    try:
        yield total
    finally:
        stopped.set()
        for _ in processes:
            total += ended.get(timeout=90)
        for process in processes:
            process.join()


def waits(port: int, tokens: int) -> list[float]:
    """Milliseconds from each token of a stream to the next; the first counts from the request."""
    body = chat(stream=True, max_tokens=tokens, temperature=0.8, seed=1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    start = time.perf_counter()
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    found, answer = [], connection.getresponse()
    for line in answer:
        if line.startswith(b"data: {") and b'"content"' in line:
            now = time.perf_counter()
            found.append(1e3 * (now - start))
            start = now
    connection.close()
    if not found:
        raise SystemExit(f"the stream ended with {answer.status} and no token")
    return found


def measure(port: int, name: str, options: Any) -> list[str]:
    """Measure one row of the table."""
    found: list[float] = []
    with attackers(port, name, options.attackers if name else 0) as ended:
        time.sleep(options.lead if name else 0)
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            found += waits(port, options.tokens)
    told = ", ".join(f"{kind} {n}" for kind, n in ended.most_common())
    row = [name or "nothing", f"{max(found):.0f}", f"{median(found):.0f}", str(len(found)), told]
    print(*row, sep=" | ", file=sys.stderr, flush=True)
    return row


def main(words: Sequence[str] | None = None) -> None:
    """Attack a server in all ways and print a Markdown table."""
    options = arguments(
        __doc__,
        words,
        "model",
        threads=2,
        seconds=8.0,
        lead=3.0,
        tokens=48,
        attackers=3,
        only="",
        ctx=2048,
    )
    command = [
        sys.executable, "-m", "pyspec", "serve", "-m", options.model, "-t", str(options.threads), "-c", str(options.ctx),
    ]  # fmt: skip
    with closing(ServerProcess(command)) as server:
        port = urlsplit(server.url).port or 0
        names = ["", *(n for n in (*ATTACKS, HALF) if options.only in n)]
        rows = [measure(port, name, options) for name in names]
    heads = ["beside it", "longest wait, ms", "median, ms", "tokens", "attackers' requests"]
    print(table(heads, rows))
    late = [row[0] for row in rows if float(row[1]) > WORST_MS]
    print(f"\nwaits over {WORST_MS:.0f} ms: {', '.join(late) or 'none'}")


if __name__ == "__main__":
    main()
