"""One text over one target: reading the prompt, then rounds until the answer ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter

from pyspec.account import Account, Timings
from pyspec.engine.assembly import Assembly
from pyspec.engine.handle import Engine, Role
from pyspec.engine.rows import PREFILL_CHUNK
from pyspec.engine.runs import Run
from pyspec.errors import Cancelled, ContextOverflow, EngineBusy
from pyspec.policy.types import Policy
from pyspec.tokens import Step, Token

UNLIMITED = 2**31 - 1
"""No limit of tokens: the context is the limit, and the answer ends with "context"."""


class Session:
    """The text that the one sequence of `assembly` holds; `close` frees the assembly, too."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.engine, self.loop, self.n_ctx = assembly.engine, assembly.loop, assembly.n_ctx
        self._lock = Lock()
        self._closed = False
        self._turn = 0  # counts answers: one that was suspended while another began must not go on with the other's text
        self._in_flight = False
        self.tokens: list[int] = []
        self.account: Account | None = None

    def steps(
        self,
        run: Run,
        policy: Policy,
        held: int = -1,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[Step]:
        """Answer the prompt that `run` begins with, one step a round; `account` says afterwards what it did.

        held: see `Engine.set_tokens`. progress(done, total) is called after each chunk of the prompt.
        Raises ContextOverflow before any decode, EngineBusy if two answers are in flight. A cancel ends with
        finish_reason "cancelled" and keeps the text so far.
        """
        n_prompt = len(run.tokens)
        if n_prompt > self.n_ctx:
            raise ContextOverflow(self.n_ctx, n_prompt)
        clock = _Clock(self.engine)
        kept = self._begin(run, held)
        turn, said = self._turn, list[Token]()
        try:
            answers = run.remaining > 0
            if answers:
                self._read(turn, run, policy, progress)
                clock.prompt_read()
            while answers and run.finish_reason is None:
                with self._alone(turn):
                    (step,) = self.loop.round((run,), policy)
                if run.error is not None:
                    run.finish_reason = None
                    raise run.error
                clock.emitted()
                said += step.tokens
                yield step
        except Cancelled:
            run.finish_reason = "cancelled"
            yield Step((), "cancelled")
        finally:
            if turn == self._turn:
                self._in_flight = False
                self.engine.cancel(raised=False)
                self.loop.end(run)
                timings = clock.timings(run.tally.tokens)
                self.account = Account(run.tally, timings, n_prompt, kept, said, run.finish_reason)

    @contextmanager
    def _alone(self, turn: int) -> Iterator[None]:
        """Keep others out while C is called, and refuse an answer that another one replaced."""
        if not self._lock.acquire(blocking=False):
            raise EngineBusy(
                "another thread is using this model", "use one object per thread, or a lock"
            )
        try:
            if turn != self._turn:
                raise EngineBusy(
                    "another answer was begun on this model, or it was closed",
                    "finish one answer before the next",
                )
            yield
        finally:
            self._lock.release()

    def _begin(self, run: Run, held: int) -> int:
        with self._alone(self._turn):
            kept = self.loop.begin(run, held)
            self.engine.cancel(raised=False)
            self._in_flight = True
            self._turn += 1
            self.tokens, self.account = run.tokens, None
            return kept

    def _read(
        self, turn: int, run: Run, policy: Policy, progress: Callable[[int, int], None] | None
    ) -> None:
        """Read the prompt in pieces; `progress` hears at least once."""
        total = len(run.tokens) - 1
        most = min(PREFILL_CHUNK, self.loop.n_batch)
        while True:
            if run.missing:
                with self._alone(turn):
                    self.loop.round((), policy, [(run, min(run.missing, most))])
            if progress is not None:
                progress(total - run.missing, total)
            if not run.missing:
                return

    @property
    def held(self) -> int:
        """Tokens of the text that the target's KV holds; after an error it may hold drafted ones too, not counted here."""
        return min(self.engine.held(Role.TARGET, 0), len(self.tokens))

    def cancel(self) -> None:
        """End the answer in flight soon; safe from any thread and from a signal handler. Without one, nothing happens."""
        if self._in_flight:
            self.engine.cancel()

    def close(self) -> None:
        """Free the assembly; an answer that another thread has in flight is cancelled first."""
        self.engine.cancel()
        with self._lock:
            self._turn += 1
            self._closed = True
            self.assembly.close()

    @contextmanager
    def if_open(self) -> Iterator[bool]:
        """Keep `close` waiting, and what is freed after it; False where it came first, or another answer is at work."""
        entered = self._lock.acquire(blocking=False)
        try:
            yield entered and not self._closed
        finally:
            if entered:
                self._lock.release()


class _Clock:
    """Where the time of one answer goes, from the engine's own counters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._start = perf_counter()
        self._first = 0.0
        self._before = self._read = engine.decode_us()

    def prompt_read(self) -> None:
        self._read = self._engine.decode_us()

    def emitted(self) -> None:
        if not self._first:
            self._first = perf_counter()

    def timings(self, tokens: int) -> Timings:
        after = self._engine.decode_us()
        end = perf_counter()
        return Timings(
            prefill_ms=1e-3 * (self._read[0] - self._before[0]),
            draft_ms=1e-3 * (after[1] - self._before[1]),
            companion_ms=1e-3 * (after[2] - self._before[2]),
            verify_ms=1e-3 * (after[0] - self._read[0]),
            first_token_ms=1e3 * ((self._first or end) - self._start),
            total_ms=1e3 * (end - self._start),
            tokens=tokens,
        )
