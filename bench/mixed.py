"""Whether a server stays correct and its memory constant under requests of all kinds: good, bad, cancelled and slow.

--clients send requests in every API until --requests are done or --seconds are over, in an order drawn from --seed. Some include
tools or a schema. A good answer must be complete: status, end, and no more tokens than requested; with a schema it must be JSON.
Half of the requests are at temperature 0 and are sent again and again, whole, streamed and to slow readers. Texts that differ
between these are counted; with attention in full precision they are few. A bad request must be refused with 400; a cancelled one
is dropped after its first bytes; a slow reader takes its time. Then --streams answers are streamed at once.

It prints the number of requests of each kind, those that differed or went wrong with the first of them, and the server's resident
memory: after each tenth of the requests, and the growth between the first tenth and the last. With --memory off the server
remembers no texts. --out FILE stores the figures, and writes the page of all such files next to it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from common import Comparison, Figures, arguments, publish, resident
from measure.contenders import ServerProcess
from measure.report import table

WORDS = "the cat sat on a mat and it said that there is a file of words to read again".split()  # noqa: SIM905
PATHS = {
    "chat": "/v1/chat/completions",
    "text": "/v1/completions",
    "response": "/v1/responses",
    "message": "/v1/messages",
}
KINDS = {"whole": 40, "streamed": 30, "bad": 15, "cancelled": 10, "slow": 5}
"""Requests of each kind in a hundred."""

ENDS = {
    "chat": (b"data: [DONE]",),
    "text": (b"data: [DONE]",),
    "response": (b"event: response.completed\n", b"event: response.incomplete\n"),
    "message": (b"event: message_stop\n",),
}
"""The start of a stream's last event."""

_SLOW_S = 0.05
_ALIKE = 24
# requests at temperature 0 by each interface

NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {
    "type": "object",
    "properties": {"n": NUMBER},
    "required": ["n"],
    "additionalProperties": False,
}
_TOOL = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
TOOLS: dict[str, dict[str, Any]] = {
    "chat": {"tools": [{"type": "function", "function": _TOOL}]},
    "text": {},
    "response": {"tools": [{"type": "function", **_TOOL}]},
    "message": {"tools": [{"name": "add", "input_schema": SCHEMA}]},
}
_FORM = {"type": "json_schema", "schema": SCHEMA}
FORMS: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "text": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "response": {"text": {"format": _FORM}},
    "message": {"output_config": {"format": _FORM}},
}
OPTIONS = {
    "requests": 20_000, "seconds": 240.0, "clients": 32, "streams": 200, "tokens": 24, "seed": 1, "threads": 2, "ctx": 1024,
    "parallel": 16, "memory": "on", "title": "", "out": None,
}  # fmt: skip
HEAD = ("server", *KINDS, "seconds", "wrong", "parted")


class MixedResults(Comparison, kw_only=True):
    """Results for one target. For each server: requests of each kind, seconds, wrong, and MB after each tenth and at the end."""

    heading = "Requests of all kinds"
    intro = (
        "Good, bad, cancelled and slow requests in every API, in an order drawn from a seed; then many streams at once. `wrong` "
        "counts answers that were not complete, and bad requests that were not refused with 400. `parted` counts texts at "
        "temperature 0 that differed from those of the same request before; near-ties cause a few. Memory is the server's "
        "resident set in MB, after each tenth of the requests before the streams, and after the streams."
    )
    work = (
        "{0.clients} clients, {0.streams} streams at once, answers of at most {0.max_tokens} tokens"
    )
    how = "the server's own sampling, one run"

    clients: int
    streams: int

    def table(self) -> str:
        """A row for each server: its requests, and its memory over time."""
        tenths = [f"tenth{n}" for n in range(1, 11)]
        names = [*KINDS, "seconds", "wrong", "parted", *tenths, "end"]
        rows = [[one["name"], *(f"{one[key]:.0f}" for key in names)] for one in self.contenders]
        return table([*HEAD, *(f"MB, {n}/10" for n in range(1, 11)), "at the end"], rows)


def body(door: str, draw: random.Random, tokens: int, **more: Any) -> dict[str, Any]:
    """A request in this API for at most this many tokens."""
    text = " ".join(draw.choices(WORDS, k=draw.randint(1, 30)))
    turns = [{"role": "user", "content": text}]
    made: dict[str, Any] = {
        "chat": {"messages": turns, "max_tokens": tokens},
        "text": {"prompt": text, "max_tokens": tokens},
        "response": {"input": text, "max_output_tokens": tokens},
        "message": {"messages": turns, "max_tokens": tokens},
    }[door]
    return {**made, **more}


def good(door: str, draw: random.Random, most: int) -> dict[str, Any]:
    """A request that can be answered: one of a few at temperature 0, or a unique one. most: tokens."""
    more: dict[str, Any] = {}
    if draw.choice([True, False]):
        more, draw = {"temperature": 0}, random.Random(f"{door} {draw.randrange(_ALIKE)}")  # noqa: S311 - no secret
    shape = draw.choice([{}, {}, TOOLS[door], FORMS[door]])
    return body(door, draw, draw.randint(1, most), **more, **shape)


def bad(door: str, draw: random.Random) -> dict[str, Any]:
    """A request that cannot be answered."""
    wrong = [{"temperature": -1}, {"n": 0}, {"top_p": "x"}, {"grammar": "root ::= ["}, {"seed": []}]
    return body(door, draw, 8, **draw.choice(wrong))


# -- what answers say --------------------------------------------------------------------------------------------------


def said(door: str, answer: dict[str, Any]) -> str:
    """The text of a whole answer, and the arguments of its calls."""
    if door == "text":
        return str(answer["choices"][0]["text"])
    if door == "chat":
        message = answer["choices"][0]["message"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        return "".join([message["content"] or "", *calls])
    if door == "message":
        blocks = [block for block in answer["content"] if block["type"] != "thinking"]
        return "".join(b["text"] if b["type"] == "text" else json.dumps(b["input"]) for b in blocks)
    items = answer["output"]
    return "".join(item.get("arguments") or item["content"][0]["text"] for item in items)


def said_in(door: str, stream: bytes) -> str:
    """The same for a streamed answer."""
    lines = [line for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return "".join(_delta(door, json.loads(line[6:])) for line in lines)


def _delta(door: str, told: dict[str, Any]) -> str:
    """The text that an event adds."""
    if door == "response":
        return str(told.get("delta", ""))
    if door == "message":
        delta = told.get("delta", {})
        return str(delta.get("text") or delta.get("partial_json") or "")
    choice = told["choices"][0] if told.get("choices") else {}
    if door == "text":
        return str(choice.get("text", ""))
    delta = choice.get("delta", {})
    calls = [call["function"].get("arguments", "") for call in delta.get("tool_calls") or ()]
    return "".join([delta.get("content") or "", *calls])


def unchunked(data: bytes) -> bytes:
    """A body sent in chunks. Raises ValueError if it ended between or inside chunks."""
    found, size = [], -1
    while size:
        length, _, data = data.partition(b"\r\n")
        size = int(length, 16)
        if len(data) < size + 2:
            raise ValueError(f"a chunk of {size} bytes has {len(data)}")
        found.append(data[:size])
        data = data[size + 2 :]
    return b"".join(found)


class MixedRun:
    """One run: its counts, and what went wrong."""

    def __init__(self, port: int, pid: int, options: Namespace) -> None:
        self.options, self._port, self._pid = options, port, pid
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.parted: list[str] = []
        self.held: list[tuple[int, float]] = []
        """The number of finished requests and the server's MiB, each second."""
        self._draw = random.Random(options.seed)  # noqa: S311 - no secret
        self._texts: dict[str, str] = {}
        self._begun = time.monotonic()

    @property
    def done(self) -> int:
        """The number of finished requests."""
        return sum(self.counts.values())

    async def run(self) -> None:
        """Send requests until there are enough."""
        watch = asyncio.ensure_future(self._watch())
        await asyncio.gather(*(self._client() for _ in range(self.options.clients)))
        watch.cancel()
        self._look()

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(1.0)

    def _look(self) -> None:
        self.held.append((self.done, resident("VmRSS", self._pid)))

    @property
    def tenths(self) -> list[float]:
        """MiB after each tenth of the requests before the streams, at the first sample after it."""
        last = self.held[-1][0]
        return [next(held for n, held in self.held if 10 * n >= k * last) for k in range(1, 11)]

    async def _client(self) -> None:
        options = self.options
        while self.done < options.requests and time.monotonic() - self._begun < options.seconds:
            kind = self._draw.choices(list(KINDS), list(KINDS.values()))[0]
            await self.one(kind, self._draw.choice(list(PATHS)))

    async def one(self, kind: str, door: str) -> None:
        """Send a request of a kind."""
        asked = (
            bad(door, self._draw) if kind == "bad" else good(door, self._draw, self.options.tokens)
        )
        name = json.dumps([door, asked]) if asked.get("temperature") == 0 else ""
        asked["stream"] = kind in ("streamed", "cancelled", "slow")
        try:
            status, data = await self._ask(PATHS[door], asked, kind)
            why = self._judge(kind, door, status, data, asked)
            if name and not why and kind != "cancelled":
                text = said_in(door, data) if asked["stream"] else said(door, json.loads(data))
                self._compare(name, text)
        except (OSError, LookupError, ValueError, asyncio.IncompleteReadError) as error:
            why = f"{type(error).__name__}: {error}"
        self.counts[kind] += 1
        if why:
            self.wrong.append(f"{kind} {door}: {why}")

    async def _ask(self, path: str, asked: dict[str, Any], kind: str) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = json.dumps(asked).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            head_ = await reader.readuntil(b"\r\n\r\n")
            status = int(head_.split(b" ", 2)[1])
            if kind == "cancelled":
                return status, await reader.read(64)
            found = b""
            while part := await reader.read(256 if kind == "slow" else 1 << 16):
                found += part
                if kind == "slow":
                    await asyncio.sleep(_SLOW_S)
            return status, unchunked(
                found
            ) if b"\r\ntransfer-encoding: chunked" in head_.lower() else found
        finally:
            writer.close()

    def _compare(self, name: str, text: str) -> None:
        """Note an answer that differs from the one that the same request got before."""
        text = "".join(text.split())  # in arguments that came whole, spaces are the interface's
        before = self._texts.setdefault(name, text)
        if text != before:
            self.parted.append(f"{text!r} was {before!r}")

    def _judge(self, kind: str, door: str, status: int, data: bytes, asked: dict[str, Any]) -> str:
        """What is wrong with an answer; empty if nothing is."""
        if kind == "bad":
            return "" if status == 400 and b'"message"' in data else f"{status} {data[:200]!r}"
        if status != 200:
            return f"{status} {data[:200]!r}"
        if kind == "cancelled":
            return ""
        if kind != "whole":
            last = data.rstrip().rpartition(b"\n\n")[2]
            if not last.startswith(ENDS[door]) or b'"error":{' in data:
                return repr(data[-200:])
            # only this API repeats the whole answer at the end
            told = (
                json.loads(last.partition(b"data: ")[2])["response"] if door == "response" else {}
            )
            return "" if not told or said(door, told) == said_in(door, data) else repr(data)
        answer = json.loads(data)
        tokens = asked.get("max_tokens", asked.get("max_output_tokens"))
        n = answer["usage"].get("completion_tokens", answer["usage"].get("output_tokens"))
        if FORMS[door].keys() <= asked.keys() and n < tokens:
            json.loads(said(door, answer))
        return "" if 1 <= n <= tokens else f"{n} tokens of {tokens}"


async def measure(server: ServerProcess, options: Namespace) -> MixedRun:
    """Run the mixture, and then many streams at once."""
    mixed = MixedRun(urlsplit(server.url).port or 0, server.pid, options)
    await mixed.run()
    streams = (mixed.one("streamed", "chat") for _ in range(options.streams))
    await asyncio.gather(*streams)
    return mixed


def main(words: Sequence[str] | None = None) -> None:
    """Mix requests and print the results; with --out, also store them."""
    given = list(sys.argv[1:] if words is None else words)
    options = arguments(__doc__, given, "model", **OPTIONS)
    command = [sys.executable, "-m", "pyspec", "serve", "-m", options.model, "-t", str(options.threads),
               "-c", str(options.ctx), "--parallel", str(options.parallel), "--memory", options.memory,
               "-fa", "off", "-ctk", "f32", "-ctv", "f32"]  # fmt: skip
    with closing(ServerProcess(command)) as server:
        begun = time.monotonic()
        mixed = asyncio.run(measure(server, options))
        seconds, end = time.monotonic() - begun, resident("VmRSS", server.pid)
    tell(mixed, seconds, end)
    if options.out:
        options.repeat = 1
        found = {f"memory {options.memory}": figures(mixed, seconds, end)}
        asked = {"clients": options.clients, "streams": options.streams}
        publish(MixedResults, "mixed", options, given, found, **asked)


def figures(mixed: MixedRun, seconds: float, end: float) -> Figures:
    """A run's figures by name. end: MiB after the streams."""
    tenths = {f"tenth{n}": held for n, held in enumerate(mixed.tenths, 1)}
    counts = {kind: float(mixed.counts[kind]) for kind in KINDS}
    return {
        **counts,
        "seconds": seconds,
        "wrong": len(mixed.wrong),
        "parted": len(mixed.parted),
        **tenths,
        "end": end,
    }


def tell(mixed: MixedRun, seconds: float, end: float) -> None:
    """Print a run, and the first requests that went wrong."""
    tenths, streams = mixed.tenths, mixed.options.streams
    print(table(["kind", "requests"], [[kind, str(n)] for kind, n in mixed.counts.items()]))
    print(f"\n{mixed.done} requests in {seconds:.0f} s, {streams} streams at once among them")
    print(f"resident after each tenth, MiB: {', '.join(f'{each:.0f}' for each in tenths)}")
    grown = tenths[-1] - tenths[0]
    print(f"from the first tenth to the last: {grown:+.0f} MiB; {end:.0f} after the streams")
    print(f"parted: {len(mixed.parted)}", *mixed.parted[:5], sep="\n  ")
    print(f"wrong: {len(mixed.wrong)}", *mixed.wrong[:5], sep="\n  ")


if __name__ == "__main__":
    main()
