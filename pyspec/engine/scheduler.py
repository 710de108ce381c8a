"""The scheduler of continuous batching: it assigns requests to sequences, and composes each decode.

A round is one `Loop.round`. Every decoding sequence gets a row for its next token and rows for its draft; prefill chunks of
other sequences take the rest of the batch. A sequence whose answer ends takes the next request at once. Requests may be added
and cancelled at any time.

- Admission: a request starts when its prompt and its longest answer fit the free KV cells, so that decoding never runs
  out of them and there is no preemption.
- Prefix cache: a prompt's beginning is copied from a sequence that holds it. While another sequence is prefilling that
  beginning, requests with the same one wait.
- Streams: sequences with consecutive numbers and equally many rows share a pass, so prompts are prefilled one at a time, and
  gaps between sequences are closed. Decoding pauses while many prompts wait, unless the batch is interactive: prefill chunks
  are then small enough not to delay any answer for long.
- Fairness: prompts with the fewest tokens left go first, but the one that has waited longest always gets a share. Neither long
  nor short prompts stall the other.
- Exact texts: every decode of answers has the same number of rows, and every prompt is prefilled alone in the same chunks, so
  that floats round the same beside any neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from pyspec.draft.lookup import TAIL
from pyspec.draft.policies import Policies
from pyspec.draft.simple import LengthPolicy
from pyspec.engine.answer import Answer, AnswerQueue
from pyspec.engine.composing import SCORED_CHUNK, Composer, score_chunk
from pyspec.engine.contexts import Contexts
from pyspec.engine.handle import PREFILL_CHUNK
from pyspec.engine.kept import ParkedTexts, PrefixCache, common
from pyspec.engine.statistics import PlainDecode, Tally, plain_decode
from pyspec.errors import Cancelled, DeadlineExceeded, EngineError
from pyspec.requests.records import failed
from pyspec.text.parts import RecordResult

log = logging.getLogger("pyspec")


class Scheduler:
    """Runs answers over the sequences of `contexts`. `round` returns the results of those that ended in it.

    window: number of waiting answers to choose from. total: collects the statistics of all. interactive: they are admitted in
    their order, and free sequences keep their whole text for later prompts; else the longest is admitted first, and free
    sequences keep only prefixes of waiting prompts. exact: texts do not depend on neighbours. gap: see `Composer`. cache: bytes
    of memory for texts of evicted sequences, if interactive. public: see `PrefixCache`.
    """

    def __init__(
        self,
        contexts: Contexts,
        policies: Policies,
        draft_max: int,
        window: int,
        total: Tally,
        *,
        interactive: bool = False,
        exact: bool = False,
        gap: float | None = None,
        cache: int = 0,
        public: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._contexts, self._policies, self._draft_max = contexts, policies, draft_max
        self._engine, self._loop = contexts.engine, contexts.loop
        self.waiting = AnswerQueue(window, contexts.n_slots, in_order=interactive)
        self.active: dict[int, Answer] = {}
        """Answers that run, by sequence."""
        self._parked = ParkedTexts(self._engine, contexts.copied, cache if interactive else 0)
        self.prefixes = PrefixCache(
            self._engine, contexts.n_slots, contexts.layout.each, public, self._parked
        )
        self._keep_texts, self._exact, self._total = interactive, exact, total
        self._pad = [max(contexts.target.token_bos(), 0)]
        self._layout, self._streams = contexts.layout, contexts.layout.each > 0
        self._slots = set(range(contexts.n_slots))
        self.outgrown = False
        """Whether none runs, and no waiting one fits a stream."""
        self._composer = Composer(
            contexts, self.active, policies.curve, interactive=interactive, exact=exact, gap=gap
        )

    def _start_all(self) -> list[RecordResult]:
        ended = []
        while self.prefixes.texts and self.waiting and not self._composer.admission_waits:
            alone = self.waiting.answers[-1].alone or any(s.alone for s in self.active.values())
            answer = None if self.active and alone else self._take()
            if answer is None:
                break
            try:
                self._start(answer)
            except Cancelled:
                raise
            except Exception as error:  # noqa: BLE001 - a faulty one must not end the others
                ended.append(self._fail(answer, error))
                lost = self._slots - self.active.keys() - self.prefixes.texts.keys()
                for seq in lost:
                    self.prefixes.keep(seq, (), 0)
        return ended

    def _take(self) -> Answer | None:
        answer = self.waiting.take(self._fits)
        if answer is not None or self.active:
            return answer
        self.outgrown = self._streams
        return None if self.outgrown else self.waiting.answers.pop()

    def _fits(self, answer: Answer) -> bool:
        room = self._layout.each if self._streams else self._unused
        return answer.need <= room and not self._being_prefilled(answer)

    @property
    def _unused(self) -> int:
        """Cells of a pool that are not reserved for running answers."""
        return self._layout.cells - sum(each.need for each in self.active.values())

    def _texts(self) -> dict[int, list[int]]:
        return {seq: answer.run.tokens for seq, answer in self.active.items() if answer.shares}

    def _being_prefilled(self, answer: Answer) -> bool:
        """Whether a prefilling sequence will hold a longer prefix of the prompt than any sequence holds now."""
        prompt = answer.tokens, answer.owner
        reading = [(s, a.run.tokens) for s, a in self.active.items() if a.run.missing and a.shares]
        if not reading:
            return False
        _, held = self.prefixes.source(*prompt, self._texts())
        most = max(self.prefixes.common(*each, *prompt) for each in reading)
        return most >= held + self.prefixes.least

    def _start(self, answer: Answer) -> None:
        if not answer.begun:
            answer.begin(self._contexts)
        text = answer.run.tokens
        source, n = self.prefixes.source(text, answer.owner, self._texts())
        seq = self._place(source, n, answer.owner)
        left = self.prefixes.left(seq, text, answer.owner)
        if left >= n:  # no copy needed
            source, n = seq, left
        # scoring needs every row of the prompt
        if not answer.shares:
            source, n = None, 0
        least = n + self.prefixes.least
        parked = self._parked.fetch(text, answer.owner, least) if answer.shares else None
        if parked is not None:
            source, n = None, 0
        if self._exact:
            n -= n % PREFILL_CHUNK  # chunks have to begin where they would alone
        if not self._streams:  # in a pool, cached texts of free sequences are evicted for it
            self.prefixes.drop(self._unused - answer.need, spare=source)
        if n == 0 or (source not in self.active and not self.prefixes.texts[source or 0]):
            source, n = None, 0
        if self._exact and source in (None, seq):
            self.prefixes.keep(seq, self.prefixes.texts[seq], n)
        self.prefixes.take(seq, text, answer.owner, source, n)
        answer.run.seq = seq
        if parked is not None:
            self._parked.restore(parked, seq, text)
        self._begin(answer)
        self.active[seq] = answer
        self._forget(seq)

    def _begin(self, answer: Answer) -> None:
        run = answer.run
        if answer.scored is not None:
            answer.scored = [None]
        else:
            self._loop.begin(run)
            answer.kept = answer.kept or len(run.tokens) - 1 - run.missing

    def _place(self, source: int | None, n: int, owner: str) -> int:
        """A free sequence: the source if its owner's prompt continues it, or the one free for longest. In streams, a neighbour.

        The source is kept where the prompt shares less than half of it, n tokens: agents make short requests between the turns of
        a conversation.
        """
        free = self.prefixes.texts
        if self._streams and self.active:
            low, high = min(self.active), max(self.active)
            near = [seq for seq in range(low, high + 2) if seq in free]
            return near[0] if near else max(seq for seq in free if seq < low)
        own = source is not None and source in free and self.prefixes.is_of(source, owner)
        if source is not None and own and 2 * n >= len(free[source]):
            return source
        others = {seq: text for seq, text in free.items() if seq != source} or free
        return next((seq for seq, text in others.items() if not text), next(iter(others)))

    def _forget(self, seq: int) -> None:
        """Reset the policies' and the drafter's state of a sequence for its new text."""
        drafter, answer = self._contexts.drafter, self.active[seq]
        self._policies.begin_sequence(seq, answer.options.rule, answer.options.sampling.draw)
        if drafter is not None:
            drafter.begin(seq, answer.owner)
            if answer.predicted:
                drafter.expect(seq, [*answer.tokens[-TAIL:], *answer.predicted])

    def round(self) -> list[RecordResult]:
        """Run one decode and return the results of answers that ended. Raises Cancelled, which loses all others."""
        ended = self._leave()
        ended += self._start_all()
        self._close_gaps()
        try:
            ended += self._score_prompts()
            ended += self._step(*self._composer.next())  # results before a failure are kept
        except Cancelled:
            raise
        except EngineError as error:
            ended += self._isolate(error)
        return ended

    def _leave(self) -> list[RecordResult]:
        """Remove answers that are finished, overdue or cancelled, and return their results."""
        reads = self._keep_texts  # those without tokens only fill the prefix cache
        ended = [self._ended(answer) for answer in self.waiting.take_ended(reads=reads)]
        gone = [a for a in self.active.values() if a.cancelled or a.overdue or a.done]
        for answer in gone:
            if answer.overdue and not answer.cancelled:
                answer.run.error = DeadlineExceeded(answer.timeout or 0.0)
        return [*ended, *(self._finish(answer) for answer in gone)]

    def _close_gaps(self) -> None:
        """Move the last stream into a gap that no waiting answer fills."""
        if any(answer.scored is not None for answer in self.active.values()):
            return  # the engine has only a part of their tokens
        while self._streams and self.active and not self._exact:
            low, high = min(self.active), max(self.active)
            gap = next((seq for seq in range(low, high) if seq in self.prefixes.texts), None)
            if gap is None:
                return
            answer = self.active.pop(high)
            self.prefixes.move(high, gap, len(answer.run.tokens))
            answer.run.seq = gap
            self.active[gap] = answer
            self._policies.move_sequence(high, gap)
            if self._contexts.drafter is not None:
                self._contexts.drafter.move(high, gap)

    def _score_prompts(self) -> list[RecordResult]:
        """Score a chunk of the oldest prompt that needs it. After the last chunk its answer begins."""
        answer = next((a for a in self.active.values() if a.scored is not None), None)
        most = self._composer.chunk_size(SCORED_CHUNK)
        if answer is None or not score_chunk(self._engine, answer, most):
            return []
        self._loop.begin(answer.run)
        answer.repeat_prompt()
        return [] if answer.max_tokens else [self._finish(answer)]

    def _step(
        self, answers: Sequence[Answer], reading: Sequence[tuple[Answer, int]]
    ) -> Iterator[RecordResult]:
        """Run one round for each draft length that requests name: a policy chooses for all rows of a round."""
        by_seq = {answer.run.seq: answer for answer in answers}
        drafts = self._loop.can_draft
        named = {seq: a.options.speculation.length if drafts else None for seq, a in by_seq.items()}
        groups = self._policies.shared(named) or {self._policies.of(None): []}
        for policy, seqs in groups.items():
            group = [by_seq[seq] for seq in seqs]
            self._round(group, policy, reading)
            reading = ()
            yield from [self._finish(answer) for answer in group if answer.done]

    def _round(
        self,
        answers: Sequence[Answer],
        policy: LengthPolicy,
        reading: Sequence[tuple[Answer, int]],
    ) -> None:
        filled = sum(answer.run.missing for answer in answers) + sum(n for _, n in reading)
        room = self._contexts.draft_rows(len(answers), len(self.active), filled)
        room = 0 if self._exact else room  # drafted rows, even a grammar's, would change rounding
        # with draft_max 0, drafters are not called, and policies learn nothing
        for answer in answers:
            own = answer.options.speculation.longest
            answer.run.draft_max = min(self._draft_max, own, room)
        padding = self.prefixes.pad(self._pad) if answers and self._exact else ()
        start, before = perf_counter(), self._engine.decode_us()[0]
        steps = self._loop.round(
            [answer.run for answer in answers],
            policy,
            [(answer.run, n) for answer, n in reading],
            padding,
        )
        took = 1e3 * (perf_counter() - start)
        self._composer.took(filled, len(answers), took)
        plain = None
        # a decode with a prefill chunk cannot be compared
        if answers and self._loop.can_draft and not filled:
            rows = sum(step.rows for step in steps) + len(padding)
            decode_ms = 1e-3 * (self._engine.decode_us()[0] - before)
            plain = self._plain(answers, policy, rows, decode_ms)
        for answer, step in zip(answers, steps, strict=True):
            answer.emitted(step.tokens, plain, took)

    def _plain(
        self, answers: Sequence[Answer], policy: LengthPolicy, rows: int, decode_ms: float
    ) -> PlainDecode | None:
        """Estimate the round's time without drafts. None for unknown. rows, decode_ms: of its actual decode."""
        depth = max(len(answer.run.tokens) for answer in answers)
        target = policy.curve.target
        plain = plain_decode(target, len(answers), [depth], {rows: 1}, decode_ms)
        return None if plain is None else plain._replace(ms=plain.ms + policy.plain_aside)

    def _finish(self, answer: Answer) -> RecordResult:
        error = answer.error
        self._release(answer)
        return self._ended(answer) if error is None else self._fail(answer, error)

    def _ended(self, answer: Answer) -> RecordResult:
        if answer.begun:
            self._total.join(answer.run.tally)
        return self._closed(answer, answer.result("cancelled" if answer.cancelled else None))

    def _fail(self, answer: Answer, error: Exception) -> RecordResult:
        return self._closed(answer, failed(answer.index, answer.record, error))

    def _closed(self, answer: Answer, result: RecordResult) -> RecordResult:
        answer.close()
        if answer.listener is not None:
            answer.listener(result)
        return result

    def _release(self, answer: Answer) -> None:
        """Free the sequence. The prefix cache keeps as much of its text as later prompts may use."""
        seq, text = answer.run.seq, answer.run.tokens
        # waiting prompts, and the longest prefix shared so far
        prompts = [*(each.tokens for each in self.waiting.answers), [*self.prefixes.shared, 0]]
        del self.active[seq]
        self._loop.end(answer.run)
        n = len(text) - 1 if self._keep_texts else max(common(text, each) for each in prompts)
        n = 0 if answer.run.error is not None or not answer.shares else n
        self.prefixes.keep(seq, text, n if n >= self.prefixes.least else 0)

    def _isolate(self, error: EngineError) -> list[RecordResult]:
        """After a failed decode, queue its answers to run one by one: only the faulty one fails again."""
        answers = list(self.active.values())
        ended = []
        for answer in answers:
            del self.active[answer.run.seq]
            self.prefixes.keep(answer.run.seq, (), 0)
            answer.catch_up()
        self.prefixes.drop(0)
        if len(answers) == 1:
            return [self._fail(answers[0], error)]
        log.warning(
            "a decode of %d records failed; they continue one by one: %s", len(answers), error
        )
        for answer in answers:
            if answer.done:
                ended.append(self._ended(answer))
            else:
                answer.alone = True
                self.waiting.add(answer)
        return ended

    def abandon(self) -> None:
        """Drop all unfinished answers."""
        for answer in list(self.active.values()):
            self._release(answer)
            answer.close()
        for answer in self.waiting.answers:
            answer.close()
        self.waiting.answers.clear()
