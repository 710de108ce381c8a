"""One sequence on one target: reads the prompt, then runs rounds until the answer ends; and the drafts that it begins with.

    session.py draft TARGET DRAFT OPTIONS_JSON    DRAFT is a file, or "mtp" for the target's own head

Run by its path, in a child process, this answers once with a draft that reads the target's states. It ends with one line, a JSON
object {"ok", "error"}. An error that pyspec itself raises is no failure here: the parent will get it too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from pyspec.draft.policies import parse_length
from pyspec.draft.simple import FixedPolicy, LengthPolicy
from pyspec.engine.assembly import Assembly, choose_parts, may_use_head
from pyspec.engine.handle import PREFILL_CHUNK, Engine, Gate, Role
from pyspec.engine.models import SideOptions
from pyspec.engine.profiles import PairMemory
from pyspec.engine.round import Run
from pyspec.engine.statistics import AnswerStatistics
from pyspec.engine.target import SNAPSHOTS, TargetLlama
from pyspec.errors import Cancelled, ContextOverflow, EngineBusy, EngineError, PyspecError
from pyspec.gguf.kinds import MTP
from pyspec.sampling.verification import Strict
from pyspec.text.parts import Step


class Session:
    """The text in the single sequence of `assembly`; `close` frees the assembly, too.

    Only one thread at a time may use it, but for `cancel`: see `AnswerLock`.
    """

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.engine, self.loop, self.n_ctx = assembly.engine, assembly.loop, assembly.n_ctx
        self.in_flight: Run | None = None
        """The run that is being answered, None between answers."""
        self.tokens: list[int] = []
        self.statistics: AnswerStatistics | None = None

    def steps(
        self,
        run: Run,
        policy: LengthPolicy,
        held: int = -1,
        progress: Callable[[int, int], None] | None = None,
        least: int = 0,
    ) -> Generator[Step, None, None]:
        """Answer the prompt in `run.tokens`, one step per round; `statistics` then holds what was done.

        held, least: see `Loop.begin`. progress(done, total) is called after each chunk of the prompt. A cancel ends the answer
        with finish_reason "cancelled" and keeps the tokens so far. Raises ContextOverflow before any decode, UnsupportedModel as
        `Loop.begin` does, and EngineBusy if another answer is in flight.
        """
        n_prompt = len(run.tokens)
        if n_prompt > self.n_ctx:
            raise ContextOverflow(self.n_ctx, n_prompt)
        clock = _Clock(self.engine)
        kept = self._begin(run, held, least)
        try:
            answers = run.remaining > 0
            if answers:
                self._read(run, policy, progress)
                clock.prompt_read()
            while answers and run.finish_reason is None:
                if self.in_flight is not run:  # a newer one replaced it: its tokens are gone
                    raise EngineBusy(
                        "another answer was begun on this model, or it was closed",
                        "finish one answer before the next",
                    )
                (step,) = self.loop.round((run,), policy)
                if run.error is not None:
                    run.finish_reason = None
                    raise run.error
                with clock.away():
                    yield step
        except Cancelled:
            run.finish_reason = "cancelled"
            yield Step((), "cancelled")
        finally:
            if self.in_flight is run:
                self.in_flight = None
                self.engine.cancel(raised=False)
                self.loop.end(run)
                timings, away = clock.timings(run.tally.tokens), clock.away_ms
                self.statistics = AnswerStatistics(run.tally, timings, away, n_prompt, kept)

    def _begin(self, run: Run, held: int, least: int) -> int:
        # first of all: an older answer that is closed now finds that the context is no longer its own
        self.in_flight = run
        self.tokens, self.statistics = run.tokens, None
        self.engine.cancel(raised=False)
        try:
            return self.loop.begin(run, held, least)
        except BaseException:
            self.in_flight = None
            raise

    def _read(
        self, run: Run, policy: LengthPolicy, progress: Callable[[int, int], None] | None
    ) -> None:
        """Read the prompt in chunks; `progress` is called before the first of several, and after each."""
        total = len(run.tokens) - 1
        most = min(PREFILL_CHUNK, self.loop.n_batch)
        if progress is not None and run.missing > most:
            progress(total - run.missing, total)
        while True:
            if run.missing:
                self.loop.round((), policy, [(run, min(run.missing, most))])
            if progress is not None:
                progress(total - run.missing, total)
            if not run.missing:
                return

    @property
    def held(self) -> int:
        """Tokens that the target's KV holds. After an error it may hold drafted tokens too; those are not counted."""
        return min(self.engine.held(Role.TARGET, 0), len(self.tokens))

    def cancel(self) -> None:
        """End the answer in flight soon, if there is one; safe from any thread and from a signal handler."""
        if self.in_flight is not None:
            self.engine.cancel()

    def close(self) -> None:
        self.in_flight = None
        self.assembly.close()


class _Clock:
    """Where the time of one answer goes, from the engine's counters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._start = perf_counter()
        self._first = self.away_ms = 0.0
        self._before = self._read = engine.decode_us()

    def prompt_read(self) -> None:
        self._read = self._engine.decode_us()

    @contextmanager
    def away(self) -> Iterator[None]:
        """The reader has a step."""
        start = perf_counter()
        self._first = self._first or start
        try:
            yield
        finally:
            self.away_ms += 1e3 * (perf_counter() - start)

    def timings(self, tokens: int) -> dict[str, float]:
        """Milliseconds, the first four inside llama.cpp's decodes, and tokens per second after the prompt was read."""
        after, end = self._engine.decode_us(), perf_counter()
        inside = {
            "prefill_ms": 1e-3 * (self._read[0] - self._before[0]),
            "draft_ms": 1e-3 * (after[1] - self._before[1]),
            "companion_ms": 1e-3 * (after[2] - self._before[2]),
            "verify_ms": 1e-3 * (after[0] - self._read[0]),
        }
        total = 1e3 * (end - self._start)
        answering = total - inside["prefill_ms"]
        return {
            **inside,
            "other_ms": max(0.0, total - sum(inside.values())),
            "first_token_ms": 1e3 * ((self._first or end) - self._start),
            "total_ms": total,
            "tokens_per_second": 1e3 * tokens / answering if answering > 0 else 0.0,
        }


class Drafts:
    """What a `SpeculativeLlama` drafts with, by its arguments `own`. Raises OptionError before anything is loaded."""

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._draft, self._companion, self._memory = own["draft"], own["companion"], own["memory"]
        self._options = SideOptions.of(
            own["draft_n_gpu_layers"], own["draft_devices"], (own["draft_type_k"], own["draft_type_v"]),
        )  # fmt: skip
        self._length = parse_length(own["length"])
        self.for_target = {
            "snapshots": 0 if self._draft == "none" else SNAPSHOTS,
            "head": may_use_head(self._draft),
        }
        """What the target's loading has to know of them."""

    def join(self, llm: Any) -> None:
        """Load draft and companion, and begin the session of `llm`."""
        parts = choose_parts(llm, self._draft, self._companion)
        parts.remember(self._memory)
        assembly = Assembly(llm, parts, self._options)
        llm._session = Session(assembly)  # noqa: SLF001 - it is closed with `llm` from here on
        llm.pair_memory = kept = PairMemory(
            llm, llm, parts.sides, self._length, timed=assembly.loop.can_draft
        )
        llm.policies = kept.policies
        assembly.engine.temper(kept.temper)
        for note in parts.notes:
            llm.note(note)


# -- the trial of a draft beside its target, in a child process --------------------------------------------------------

_PROMPT, _ANSWER, _DRAFTED = 70, 24, 5
"""Tokens: enough for more than one batch of states, several rounds, and drafts of several rows."""


def _try_draft(target: str, draft: str, options: str) -> None:
    """Answer once, with drafts."""
    kwargs = json.loads(options)
    seconds = kwargs.pop("seconds")
    llm = TargetLlama(target, trust=True, verbose=False, head=draft == MTP, **kwargs)
    session = Session(Assembly(llm, choose_parts(llm, draft, "none")))
    prompt = [3 + i % (llm.n_vocab() - 3) for i in range(min(_PROMPT, llm.n_ctx() // 2))]
    run = Run(0, prompt, Gate(Strict(), sampled=False), _ANSWER, goes_on=True)
    signal.setitimer(signal.ITIMER_PROF, seconds * llm.n_threads)  # ends what would never end
    for _ in session.steps(run, FixedPolicy(_DRAFTED)):
        pass
    if session.loop.failed:  # the answer went on without the draft, so the trial proved nothing
        raise EngineError("it cannot draft for this target")


def _main() -> None:
    error = ""
    try:
        _try_draft(*sys.argv[2:])
    except EngineError as failure:
        error = str(failure)
    except PyspecError:
        pass
    sys.stdout.write("\n" + json.dumps({"ok": not error, "error": error}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
