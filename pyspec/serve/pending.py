"""A running request and its growing answers, from which every interface writes its responses."""

from __future__ import annotations

import asyncio
import codecs
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspec.engine.answer import Answer
from pyspec.engine.statistics import times_among
from pyspec.errors import AnswerFailed
from pyspec.serve import ServerSettings
from pyspec.text.parser import joined
from pyspec.text.parts import AnswerPart, Piece, RecordResult, Token, TokenLogprobs, is_object

log = logging.getLogger("pyspec")

FAILED = {"InputError": 400, "OptionError": 400, "Cancelled": 503}
"""HTTP status of a failed answer by the exception's name; 500 for others."""

AnswerListener = Callable[[RecordResult, dict[str, float]], None]  # takes a result, and its times


@dataclass
class PendingRequest:
    """A running request: its answers, and their pieces that the reader has not taken yet.

    Only the loop's thread may use it.
    """

    serving: ServerSettings
    piece: Callable[[int], bytes]  # returns a token's bytes
    answered: AnswerListener  # is called at the end of each answer
    body: Any  # of the interface's type
    answers: list[Answer]
    name: str
    begun: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970
    ended: dict[int, tuple[RecordResult, dict[str, float]]] = field(default_factory=dict)
    _firsts: dict[int, float] = field(default_factory=dict)
    _brought: dict[int, list[Piece | RecordResult]] = field(default_factory=dict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _silent: bool = False

    def choices(self) -> list[Choice]:
        """A new, empty `Choice` for each answer."""
        return [Choice(self, i) for i in range(len(self.answers))]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompts. A prompt with several choices counts once."""
        return sum(len(answer.tokens) for answer in self.answers[:: self.body.n or 1])

    def put(self, index: int, brought: Piece | RecordResult) -> None:
        """Add a piece or the result to the answer of this index. Results are counted whether or not they are read."""
        self._firsts.setdefault(index, time.perf_counter())
        self._brought.setdefault(index, []).append(brought)
        if isinstance(brought, RecordResult):
            now, tokens = time.perf_counter(), brought.usage.completion_tokens
            times = times_among(self.begun, self._firsts[index], now, tokens)
            self.ended[index] = brought, times
            if brought.error is not None and brought.error.type not in FAILED:
                log.error("answer %s failed: %s", self.name, brought.error.message)
            self.answered(brought, times)
        self._arrived.set()

    def ping(self) -> None:
        """Have `updates` yield a ping, after a time without output."""
        self._silent = True
        self._arrived.set()

    async def updates(self, choices: Sequence[Choice]) -> AsyncIterator[Choice | None]:
        """Yield each choice that has grown, until all have ended; None for a ping. Raises AnswerFailed."""
        while not all(choice.result for choice in choices):
            await self._arrived.wait()
            self._arrived.clear()
            if self._silent:
                self._silent = False
                yield None
            taken, self._brought = self._brought, {}
            for index, brought in taken.items():
                choices[index].take(brought)
                yield choices[index]


class Choice:
    """One answer of a request as it grows."""

    def __init__(self, pending: PendingRequest, index: int) -> None:
        self.pending, self.index = pending, index
        self.result: Any = None  # at the end
        self.block: dict[str, Any] = {}  # statistics of speculation, at the end
        self.likely: list[tuple[Token, TokenLogprobs | None]] = []  # of tokens not yet written
        self.details: list[dict[str, Any]] = []  # their sources, where the client wants them
        self._parts: list[AnswerPart] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, brought: Sequence[Piece | RecordResult]) -> None:
        """Add pieces, and the result. Raises AnswerFailed."""
        speculation = self.pending.body.speculation
        for each in brought:
            if isinstance(each, RecordResult):
                self._end(each)
                continue
            self._parts += each.parts
            self.likely += zip(each.tokens, each.likely)
            if speculation is not None and speculation.tokens:
                self.details += map(self._detail, each.tokens)

    def _detail(self, token: Token) -> dict[str, Any]:
        piece = self.pending.piece
        made = token.described(self._decoder.decode(piece(token.id)))
        if token.preferred != token.id:
            made["preferred"] = piece(token.preferred).decode("utf-8", "replace")
        return made

    def _end(self, result: RecordResult) -> None:
        if result.error is not None:
            raise AnswerFailed(result.error.message, result.error.type)
        self.result = result
        _, timings = self.pending.ended[self.index]
        self.block = {**result.speculation, "timings": timings}

    def taken(self) -> list[AnswerPart]:
        """Take the parts that arrived since the last call."""
        parts, self._parts = self._parts, []
        return joined(parts)


BlockStep = tuple[Literal["begin", "more", "end"], "AnswerBlock", str]

_TEXTS = ("reasoning", "content")


@dataclass
class AnswerBlock:
    """One block. text: a call's is its arguments. call: a call's id. name: a call's function. index: counts from 0."""

    kind: Literal["reasoning", "content", "call"]
    index: int
    text: str = ""
    call: str = ""
    name: str = ""

    @property
    def whole(self) -> bool:
        """False for a call whose arguments were cut."""
        return self.kind != "call" or is_object(self.text)


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
            kind = part.kind if part.kind in _TEXTS else "call"
            if self._open is None or self._open.kind != kind:
                yield from self.end()
                yield from self._begin(kind)  # type: ignore[arg-type]
            if part.text and self._open is not None:
                self._open.text += part.text
                yield "more", self._open, part.text

    def end(self) -> Iterator[BlockStep]:
        """End the open block, if any."""
        if self._open is not None:
            block, self._open = self._open, None
            yield "end", block, ""

    def _begin(
        self, kind: Literal["reasoning", "content", "call"], call: str = "", name: str = ""
    ) -> Iterator[BlockStep]:
        self._open = AnswerBlock(kind, len(self.all), "", call, name)
        self.all.append(self._open)
        yield "begin", self._open, ""
