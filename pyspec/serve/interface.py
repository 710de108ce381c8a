"""What every API is written with: a running request with its growing answers, and the definition of an interface."""

from __future__ import annotations

import asyncio
import codecs
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from pyspec.engine.answer import Answer
from pyspec.engine.statistics import times_among
from pyspec.errors import AnswerFailed
from pyspec.requests.bodies import Body
from pyspec.requests.records import Record
from pyspec.serve import ServerSettings
from pyspec.text.parser import joined
from pyspec.text.parts import AnswerPart, Piece, RecordResult, Token, TokenLogprobs, object_of

log = logging.getLogger("pyspec")

AnswerListener = Callable[[RecordResult, dict[str, float]], None]  # takes a result, and its times
BlockKind = Literal["reasoning", "content", "call"]
BlockStep = tuple[Literal["begin", "more", "end"], "AnswerBlock", str]
READER_S = 120.0  # time limit for a client to make room in a full connection


@dataclass
class PendingRequest:
    """A running request: its answers, and as choices what came of them. Only the loop's thread may use it."""

    serving: ServerSettings
    piece: Callable[[int], bytes]  # returns a token's bytes
    answered: AnswerListener  # is called at the end of each answer
    body: Any  # of the interface's type
    answers: list[Answer]
    name: str
    end: Callable[[], None] = field(init=False)  # is called once its client has all, or has left
    begun: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970
    _grown: dict[int, None] = field(default_factory=dict)  # choices that the reader has to look at
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _silent: bool = False

    def __post_init__(self) -> None:
        made = enumerate(answer.record for answer in self.answers)
        self.choices = [Choice(i, record, self.piece, self.begun) for i, record in made]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompts. A prompt with several choices counts once."""
        return sum(len(answer.tokens) for answer in self.answers[:: self.body.n or 1])

    def put(self, index: int, brought: Piece | RecordResult) -> None:
        """Add a piece or the result to the choice of this index. Results are counted whether or not they are read."""
        choice = self.choices[index]
        choice.put(brought)
        if isinstance(brought, RecordResult):
            if (error := choice.error) is not None and error.http[0] == 500:
                log.error("answer %s failed: %s", self.name, error)
            self.answered(brought, choice.times)
        self._grown[index] = None
        self._arrived.set()

    def ping(self) -> None:
        """Have `updates` yield a ping, after a time without output."""
        self._silent = True
        self._arrived.set()

    async def updates(self) -> AsyncIterator[Choice | None]:
        """Yield each choice that has grown, until all have ended; None for a ping. Raises AnswerFailed."""
        while self._grown or not all(choice.result for choice in self.choices):
            await self._arrived.wait()
            self._arrived.clear()
            if self._silent:
                self._silent = False
                yield None
            while self._grown:
                index = next(iter(self._grown))
                del self._grown[index]
                if (error := self.choices[index].error) is not None:
                    raise error
                yield self.choices[index]


class Choice:
    """One answer of a request as it grows. piece: returns a token's bytes. begun: when the request came."""

    def __init__(
        self, index: int, record: Record, piece: Callable[[int], bytes], begun: float
    ) -> None:
        self.index, self.record, self.piece, self._begun = index, record, piece, begun
        self.result: Any = None  # at the end
        self.times: dict[str, float] = {}  # at the end
        self.likely: list[tuple[Token, TokenLogprobs | None]] = []  # of tokens not yet written
        self.details: list[dict[str, Any]] = []  # their sources, where the client wants them
        self._parts: list[AnswerPart] = []
        self._first = 0.0  # when something came
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, brought: Piece | RecordResult) -> None:
        now = time.perf_counter()
        self._first = self._first or now
        if isinstance(brought, RecordResult):
            tokens = brought.usage.completion_tokens
            self.result = brought
            self.times = times_among(self._begun, self._first, now, tokens)
            return
        self._parts += brought.parts
        self.likely += zip(brought.tokens, brought.likely)
        if self.record.speculation is not None and self.record.speculation.tokens:
            self.details += map(self._detail, brought.tokens)

    def _detail(self, token: Token) -> dict[str, Any]:
        made = token.described(self._decoder.decode(self.piece(token.id)))
        if token.preferred != token.id:
            made["preferred"] = self.piece(token.preferred).decode("utf-8", "replace")
        return made

    @property
    def error(self) -> AnswerFailed | None:
        failure = self.result and self.result.error
        return AnswerFailed(failure.message, failure.type) if failure else None

    @property
    def block(self) -> dict[str, Any]:
        """Statistics of speculation, at the end."""
        return {**self.result.speculation, "timings": self.times}

    def taken(self) -> tuple[list[AnswerPart], bool]:
        """Take the parts since the last call, and whether they are the last. More may come while they are written."""
        parts, self._parts = self._parts, []
        return joined(parts), self.result is not None


@dataclass
class AnswerBlock:
    """One block. text: a call's is its arguments. call: a call's id. name: a call's function. index: counts from 0."""

    kind: BlockKind
    index: int
    text: str = ""
    call: str = ""
    name: str = ""

    @property
    def whole(self) -> bool:
        """False for a call whose arguments were cut."""
        return self.kind != "call" or object_of(self.text) is not None


class AnswerBlocks:
    """Groups parts into blocks as they arrive."""

    def __init__(self) -> None:
        self.all: list[AnswerBlock] = []
        self._open: AnswerBlock | None = None

    def take(self, parts: Iterable[AnswerPart]) -> Iterator[BlockStep]:
        """Yield the steps that these parts take: blocks that begin, grow by a text, and end."""
        for part in parts:
            if part.kind == "call":
                yield from self.end()
                yield from self._begin("call", part.id, part.text)
                continue
            if part.kind == "broken":  # its text has been sent already
                yield from self.end()
                continue
            kind: BlockKind = "call" if part.kind == "arguments" else part.kind
            if self._open is None or self._open.kind != kind:
                yield from self.end()
                yield from self._begin(kind)
            if part.text and self._open is not None:
                self._open.text += part.text
                yield "more", self._open, part.text

    def end(self) -> Iterator[BlockStep]:
        if self._open is not None:
            block, self._open = self._open, None
            yield "end", block, ""

    def _begin(self, kind: BlockKind, call: str = "", name: str = "") -> Iterator[BlockStep]:
        self._open = AnswerBlock(kind, len(self.all), "", call, name)
        self.all.append(self._open)
        yield "begin", self._open, ""


OPENAI_TOO_LONG = (
    "This model's maximum context length is {have} tokens. However, your messages resulted in {need} tokens. "
    "Please reduce the length of the messages."
)

PING = b":\n\n"  # a server-sent comment, which clients ignore


@dataclass(frozen=True)
class Interface:
    """One API's format of requests and responses."""

    kind: str  # its label in metrics
    prefix: str  # of its responses' ids
    body: type[Body]  # of its requests
    whole: Callable[[PendingRequest], dict[str, Any]]  # once all choices have ended
    # while they grow; it may raise AnswerFailed
    events: Callable[[PendingRequest], AsyncIterator[bytes]]
    # an error's body from status, code and message
    refusal: Callable[[int, str | None, str], dict[str, Any]]
    broken: Callable[[Any], bytes]  # the end of a stream that fails, from an error's body
    # the sentence by which clients know that they must shorten a prompt
    too_long: str = OPENAI_TOO_LONG
    streamed: tuple[type[Exception], ...] = ()  # errors that clients expect within the stream
    media_type: str = "text/event-stream"  # of a stream
    ping: bytes = PING  # if empty, none are sent


def openai_refusal(status: int, code: str | None, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def data_event(value: Any) -> bytes:
    """An event of a stream without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def event(value: dict[str, Any]) -> bytes:
    """A server-sent event, named after the `type` of its value."""
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), msgspec.json.encode(value))


class EventStream(StreamingResponse):
    """A streamed response, which may begin before the request is admitted. The request ends with it, whatever the reason."""

    def __init__(
        self,
        begun: asyncio.Future[PendingRequest],
        interface: Interface,
        refusal: Callable[[BaseException], bytes],  # the last event of a request that fails
        every: float,  # seconds of silence before a ping
    ) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        self._begun, self._every, self._of = begun, every, interface
        self._expect()
        written = self._written(refusal)
        super().__init__(written, headers=headers, media_type=interface.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answers; end without an error if the client leaves or does not read."""

        async def timed(message: Message) -> None:
            self._silent.cancel()
            with anyio.fail_after(READER_S):
                await send(message)
            self._expect()

        try:
            await super().__call__(scope, receive, timed)
        except (OSError, ClientDisconnect):  # OSError: TimeoutError, too
            pass
        finally:
            self._silent.cancel()
            self._begun.add_done_callback(_end)

    async def _written(self, refusal: Callable[[BaseException], bytes]) -> AsyncIterator[bytes]:
        while not self._begun.done():
            if self._of.ping:
                yield self._of.ping
            await asyncio.wait({self._begun}, timeout=self._every)
        if error := self._begun.exception():
            yield refusal(error)
            return
        try:
            async for each in self._of.events(self._begun.result()):
                yield each
        except AnswerFailed as failed:
            yield refusal(failed)

    def _expect(self) -> None:
        self._silent = asyncio.get_running_loop().call_later(self._every, self._ping)

    def _ping(self) -> None:
        if self._begun.done() and self._begun.exception() is None:
            self._begun.result().ping()
        self._expect()


def _end(begun: asyncio.Future[PendingRequest]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result().end()
