"""Continuous batching: which record runs in which sequence, and what goes into each decode.

A round is one `Loop.round`: every answering sequence gets its row and its drafted tokens, and what
room is left in the batch takes prompt tokens of sequences that are still reading. A sequence whose
answer ends is given the next record at once.

- A record starts when its prompt and its longest answer fit the free KV cells: decoding never runs
  out of them.
- The tokens that all prompts of the first window begin with are decoded once, in sequence 0, and
  copied.
- Over streams, equal rows of sequences whose numbers follow each other go through together: prompts
  are read one at a time, answers wait while many are read, and at the end sequences move up.
- Prompts with the least left to read go first, but the one that waits longest always gets a share:
  neither do long prompts stall short ones, nor the other way round.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspec.batch.jobs import Job
from pyspec.batch.prefix import SharedPrefix
from pyspec.batch.records import failed
from pyspec.batch.rows import draft_rows, fill_rows, read_one, share_rows
from pyspec.batch.waiting import Waiting
from pyspec.engine.handle import MAX_DRAFT, Gate
from pyspec.engine.loop import Run
from pyspec.engine.side import address
from pyspec.errors import Cancelled, EngineError
from pyspec.sampling import build_chain
from pyspec.text import TextAssembler, piece_reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.batch.contexts import Contexts
    from pyspec.batch.records import Result
    from pyspec.policy.base import LengthPolicy

log = logging.getLogger("pyspec")


@dataclass
class _Slot:
    """A job on its sequence. missing: prompt tokens still to be read, the last one aside."""

    job: Job
    run: Run
    text: TextAssembler
    chain: Any
    missing: int
    shared: int
    shown: str = ""


@dataclass
class Counts:
    """Tokens so far, those of failed records included."""

    tokens: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    relaxed: int = 0


class Scheduler:
    """Runs jobs over the sequences of `contexts`; `round` returns those that ended in it.

    window: how many jobs wait to be chosen from. counts: what is emitted is added there.
    outgrown: none of the jobs that wait fits a stream, and none runs.
    """

    def __init__(
        self,
        contexts: Contexts,
        policy: LengthPolicy,
        draft_max: int,
        window: int,
        counts: Counts,
    ) -> None:
        self._contexts, self._policy, self._draft_max = contexts, policy, draft_max
        self._engine, self._loop = contexts.engine, contexts.loop
        self._piece = piece_reader(contexts.target._model.vocab)  # noqa: SLF001
        self._waiting = Waiting(window, contexts.n_slots)
        self._active: dict[int, _Slot] = {}
        self._free = list(range(contexts.n_slots, 0, -1))
        self._prefix = SharedPrefix(contexts)
        self._counts = counts
        self.outgrown = False

    # -- jobs in -----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more jobs the window takes."""
        return self._waiting.room

    @property
    def prefix_tokens(self) -> int:
        """Length of the prefix that prompts share."""
        return len(self._prefix)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._waiting and not self._active

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self._waiting.add(job)

    def _start_all(self) -> None:
        while self._free and self._waiting:
            alone = self._waiting.first.alone or any(s.job.alone for s in self._active.values())
            job = None if self._active and alone else self._take()
            if job is None:
                return
            self._start(self._free.pop(), job)

    def _take(self) -> Job | None:
        """The next job, if one can start."""
        job = self._waiting.take(self._fits)
        if job is not None or self._active:
            return job
        self.outgrown = self._streams
        if self.outgrown:
            return None
        self._prefix.drop(self._free)  # it is all that is in the way
        return self._waiting.take_first()

    @property
    def _streams(self) -> bool:
        return self._contexts.layout.each > 0

    def _fits(self, job: Job) -> bool:
        if self._streams:
            return job.need <= self._contexts.layout.each
        used = sum(slot.job.need - slot.shared for slot in self._active.values())
        free = self._contexts.layout.cells - len(self._prefix) - used
        return job.need - self._prefix.common(job.tokens) <= free

    def _start(self, seq: int, job: Job) -> None:
        shared, kept = self._prefix.give(seq, job.tokens)
        chain = build_chain(job.sampling, self._contexts.target, job.grammar)
        run = Run(
            seq, list(job.tokens), Gate(job.rule, job.sampling.temperature != 0.0), job.max_tokens
        )
        run.sampler = 0 if chain is None else address(chain.sampler)
        text = TextAssembler(self._piece, job.stop)
        self._active[seq] = _Slot(job, run, text, chain, len(job.tokens) - 1 - kept, shared)
        self._forget(seq)

    def _forget(self, seq: int) -> None:
        """Tell the policy, and a drafter that keeps an index of each text, that this one is another."""
        self._policy.begin_sequence(seq)
        forget = getattr(self._contexts.drafter, "forget", None)
        if forget is not None:
            forget(seq)

    # -- rounds ------------------------------------------------------------------------------------

    def round(self) -> list[Result]:
        """One decode, and the results of jobs that ended with it.

        Raises Cancelled; all that was not finished is then lost.
        """
        if self._prefix.tokens is None:
            self._prefix.find(self._waiting.prompts)
        ended = self._end_empty()
        self._start_all()
        self._move_up()
        slots = self._answering()
        fills = self._fills(len(slots))
        try:
            ended += self._step(slots, fills)
        except Cancelled:
            raise
        except EngineError as error:
            ended += self._isolate(error)
        return ended

    def _end_empty(self) -> list[Result]:
        """Jobs that ask for no tokens."""
        relaxed = {"relaxed": 0, "relaxed_nats": 0.0}
        return [job.result("", 0, "length", relaxed) for job in self._waiting.take_empty()]

    def _answering(self) -> list[_Slot]:
        """Whose rows go into the next decode."""
        slots = [slot for slot in self._active.values() if slot.missing == 0]
        reading = len(self._active) - len(slots)
        # a row of a prompt costs least beside others of its own
        return [] if self._streams and reading > self._contexts.n_slots // 4 else slots

    def _move_up(self) -> None:
        """Where no record comes to fill a gap among streams, the last one does."""
        while self._streams and self._active and self._free:
            gap, last = min(self._free), max(self._active)
            if gap > last:
                return
            slot = self._active.pop(last)
            self._engine.copy_prefix(last, gap, len(slot.run.tokens))
            self._engine.set_tokens(last, ())
            self._free[self._free.index(gap)] = last
            slot.run.seq = gap
            self._active[gap] = slot

    def _step(self, slots: Sequence[_Slot], fills: Sequence[tuple[int, int]]) -> list[Result]:
        if not slots:
            if fills:
                self._engine.verify([(seq, n, -1) for seq, n in fills])
        else:
            self._bound_drafts(slots, sum(n for _, n in fills))
            steps = self._loop.round([slot.run for slot in slots], self._policy, fills)
            for slot, step in zip(slots, steps, strict=True):
                slot.shown += slot.text.push([token.id for token in step.tokens])
        for seq, n in fills:
            self._active[seq].missing -= n
        done = [slot for slot in slots if slot.run.finish_reason is not None or slot.text.done]
        return [self._finish(slot) for slot in done]

    def _bound_drafts(self, slots: Sequence[_Slot], filled: int) -> None:
        room = draft_rows(self._contexts, len(slots), filled)
        for slot in slots:
            slot.run.draft_max = min(self._draft_max, MAX_DRAFT, room)

    def _fills(self, n_answering: int) -> list[tuple[int, int]]:
        """Prompt tokens for the next decode, as (sequence, tokens)."""
        # the dict keeps the order of starting: the first one that reads has waited longest
        reading = [(seq, slot.missing) for seq, slot in self._active.items() if slot.missing > 0]
        budget = fill_rows(self._contexts, n_answering)
        if self._streams:
            return read_one(reading, budget, n_answering)
        return share_rows(reading, budget)

    def _finish(self, slot: _Slot) -> Result:
        text = slot.shown + slot.text.finish()
        reason = "stop" if slot.text.done else slot.run.finish_reason or "length"
        tally = slot.run.tally
        counts = self._counts
        counts.tokens += tally.tokens
        counts.drafted += tally.drafted
        counts.verified += tally.verified
        counts.accepted += tally.accepted
        counts.relaxed += tally.relaxed
        self._release(slot)
        return slot.job.result(text, tally.tokens, reason, tally.as_dict())

    def _release(self, slot: _Slot) -> None:
        """Give the sequence back, with the shared prefix in its KV and nothing else."""
        seq = slot.run.seq
        del self._active[seq]
        self._free.append(seq)
        if slot.chain is not None:
            slot.chain.close()
        # one token more than is kept: the last token of a text is never held
        self._engine.set_tokens(seq, slot.job.tokens[: slot.shared + 1] if slot.shared else ())

    # -- faults ------------------------------------------------------------------------------------

    def _isolate(self, error: EngineError) -> list[Result]:
        """After a failed decode: whose fault it was shows when each one runs alone."""
        slots = list(self._active.values())
        for slot in slots:
            slot.shared = 0
            self._release(slot)
        self._prefix.drop(self._free)
        if len(slots) == 1:
            job = slots[0].job
            return [failed(job.index, job.record, error)]
        log.warning("a batch failed and its %d records run one by one: %s", len(slots), error)
        for slot in slots:
            slot.job.alone = True
            self.add(slot.job)
        return []

    def give_up(self) -> list[Job]:
        """The jobs that wait, which leave."""
        return self._waiting.take_all()

    def abandon(self) -> None:
        """Drop everything that has not ended."""
        for slot in list(self._active.values()):
            self._release(slot)
        self._waiting.take_all()
