"""What goes into a round and comes out of it: runs, what grammars force and allow, C's structs as objects; and its threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Any, Protocol

import llama_cpp
import numpy as np
import numpy.typing as npt

from pyspec._lib import ffi
from pyspec.draft.types import Draft
from pyspec.engine.handle import Engine, Gate
from pyspec.engine.statistics import Tally
from pyspec.errors import PyspecError
from pyspec.machine.machine import Watch
from pyspec.sampling.options import MAX_DRAFT, Coupling
from pyspec.text.parts import Source, Token

UNLIMITED = 2**31 - 1
"""No limit of an answer's tokens, which then ends with the context, or of a decode's rows, other than llama.cpp's own."""

_SOURCES = tuple(Source)


class Guide(Protocol):
    """What a grammar says of an answer's next tokens."""

    def forced(self, most: int) -> list[int]:
        """Return up to `most` tokens that come next, or may be expected to, as the target would write them."""

    def allows(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may come next, one after the other."""

    def foresee(self, tokens: Sequence[int]) -> None:
        """Prepare for these tokens, which are about to be verified."""


@dataclass(slots=True)
class Run:
    """One answer in flight on one sequence."""

    seq: int
    tokens: list[int]  # committed, prompt included
    gate: Gate
    remaining: int  # tokens still allowed
    sampler: int = 0  # address of a llama sampler chain, 0 for none
    coupling: Coupling | None = None  # the noise that draws; None if sampler or argmax choose
    draft_max: int = MAX_DRAFT  # the longest draft allowed
    drafting: str = "all"  # who may draft, as in `AnswerOptions`
    goes_on: bool = False  # whether it continues after `remaining` tokens, without drafts
    missing: int = 0  # tokens before the last one that the target's KV lacks
    rows: list[npt.NDArray[np.float32]] | None = None  # collects the logits of emitted tokens
    guide: Guide | None = None  # the grammar that the answer follows
    tally: Tally = field(default_factory=Tally)
    finish_reason: str | None = None
    error: PyspecError | None = None  # why nothing could be accepted

    def extend(self, ids: Sequence[int]) -> None:
        """Commit the tokens of a round."""
        self.tokens.extend(ids)
        self.remaining -= len(ids)


class Outage:
    """Rounds that a model sits out after it failed: 8, and twice as many each time it fails again."""

    def __init__(self) -> None:
        self._left, self._length = 0, 8

    def begin(self) -> None:
        self._left = self._length
        self._length = min(2 * self._length, 4096)

    def lasts(self) -> bool:
        """Whether the model sits out this round; call it once per round."""
        self._left -= 1
        return self._left >= 0

    def end(self) -> None:
        self._length = 8


def emitted(verdict: Any, *, confirming: bool = False) -> tuple[Token, ...]:
    """The tokens of a `ps_verdict`; confirming: whether a relaxed token had to be confirmed by those after it."""
    n = verdict.n
    if n == 1:
        token = Token(
            verdict.token[0], _SOURCES[verdict.source[0]], verdict.gap[0], verdict.preferred[0]
        )
        return (token,)
    ids, sources = ffi.unpack(verdict.token, n), ffi.unpack(verdict.source, n)
    preferred, gaps = ffi.unpack(verdict.preferred, n), ffi.unpack(verdict.gap, n)
    return tuple(
        Token(
            id_,
            _SOURCES[source],
            gap,
            wanted,
            seen.behind if confirming and source == Source.RELAXED else None,
        )
        for id_, source, gap, wanted, seen in zip(ids, sources, gaps, preferred, verdict.seen)
    )


def draft_of(seq: int, view: Any) -> Draft:
    n = view.n
    draft = Draft(seq, n, p=ffi.unpack(view.p, n)) if n else Draft(seq, 0)
    if n and view.scored:
        seen = ffi.unpack(view.agreement, n)
        draft.s, draft.a, draft.pc = [x.s for x in seen], [x.a for x in seen], [x.pc for x in seen]
        draft.agree = [x.top == token for x, token in zip(seen, ffi.unpack(view.token, n))]
    return draft


def force(engine: Engine, run: Run, most: int) -> int:
    """Draft what a run's grammar forces, at most `most` tokens, and return how many."""
    if run.guide is None or most < 1 or run.drafting == "nothing":
        return 0
    tokens = run.guide.forced(most)
    if tokens:
        engine.put_draft(run.seq, tokens)
    return len(tokens)


def allowed(engine: Engine, run: Run, n: int) -> int:
    """Return how many of the first n drafted tokens of a run its grammar allows."""
    if run.guide is None or n == 0:
        return n
    tokens = ffi.unpack(engine.drafted(run.seq).token, n)
    n = run.guide.allows(tokens)
    run.guide.foresee(tokens[:n])
    return n


# -- threads -----------------------------------------------------------------------------------------------------------

# ggml's threads wait for each other after every operation of a model's graph, and they spin while waiting. A thread without a
# processor keeps all others waiting for a scheduler time slice of some milliseconds, hundreds of times per token. One thread too
# few makes decoding a little slower; one too many, about ten times (`bench/busy.py`).

EVERY_S = 0.15
"""Seconds between two looks at the processors: their clocks tick every 10 ms."""

SLACK = 0.25
"""Processors that others may take before a thread gives way: a system is never quite idle."""

_SURE = 2  # consecutive looks that must agree: a short-lived child of this process is over sooner


def threads_beside(most: int, processors: int, others: float) -> int:
    """Threads, 1 to `most`, that find a processor each while other programs take this many processors."""
    return max(1, min(most, processors - ceil(others - SLACK)))


class Threads:
    """The threads of some llama.cpp contexts: `most`, or fewer while others need processors.

    contexts: as llama_cpp has them; they must outlive this.
    """

    def __init__(self, contexts: Sequence[Any], most: int, load: Watch) -> None:
        self._contexts, self._most = contexts, most
        self._load = load
        """The processors' load since the last look."""
        self.n = most
        self._next = 0.0
        self._waiting = 0

    def adapt(self) -> bool:
        """Use as many threads as fit, if it is time to look again; returns whether their number changed."""
        now = perf_counter()
        if now < self._next:
            return False
        self._next = now + EVERY_S
        fit = threads_beside(self._most, self._load.processors, self._load.others())
        self._waiting = self._waiting + 1 if fit != self.n else 0
        if self._waiting < _SURE:
            return False
        self.n, self._waiting = fit, 0
        for context in self._contexts:
            llama_cpp.llama_set_n_threads(context, fit, fit)
        return True
