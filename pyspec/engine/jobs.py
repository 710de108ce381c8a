"""Jobs: records that are ready to run, the queue of those that wait, and their running answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pyspec.engine.options import AnswerOptions
from pyspec.engine.runs import Run
from pyspec.engine.statistics import PlainDecode, Tally, speculation_report, times_among
from pyspec.errors import PyspecError
from pyspec.requests.custom import openai_calls
from pyspec.requests.records import Record
from pyspec.sampling.chain import error_behind
from pyspec.text.answer import AnswerReader
from pyspec.text.parts import AnswerPart, Piece, Token, TokenLogprobs, targets_own
from pyspec.text.result import RecordResult, Usage


@dataclass
class Job:
    """A record that is ready to run.

    need: KV cells that it may take. options: of the answer. reader: creates the answer's parser. listener: called with
    each round's piece and with the result, in the engine's thread. alternatives: how many of the likeliest tokens to return at
    each position; None for none at all. cancelled: may be set from any thread; the job ends before the next round. alone: no
    other job may run beside it. begun: its answer so far, after a failed decode. timeout: in seconds. owner: only texts of the
    same owner are drafted for it. echo: the prompt's text if the answer begins with it. predicted: tokens of a predicted
    answer, to draft from. drafts: names of draft and companion.
    """

    index: int
    record: Record
    tokens: list[int]
    options: AnswerOptions
    reader: Callable[[Sequence[str]], AnswerReader]
    need: int
    listener: Callable[[Piece | RecordResult], None] | None = None
    alternatives: int | None = None
    cancelled: bool = False
    alone: bool = False
    begun: ActiveJob | None = None
    timeout: float | None = None
    owner: str = ""
    echo: str = ""
    predicted: Sequence[int] = ()
    drafts: tuple[str, str] = ("none", "none")

    @property
    def max_tokens(self) -> int:
        return self.options.max_tokens or 0

    @property
    def only_read(self) -> bool:
        """Whether it wants neither tokens nor the prompt's probabilities: it only fills the prefix cache."""
        return self.max_tokens == 0 and not self.options.prompt_rows

    def result(
        self,
        parts: Sequence[AnswerPart],
        tally: Tally,
        timings: Mapping[str, float],
        kept: int = 0,
        **more: Any,
    ) -> RecordResult:
        """The result with these parts. kept: prompt tokens from the prefix cache. more: further fields of the result."""
        n = len(self.tokens)
        about = speculation_report(tally, (n, min(kept, n)), timings)
        result = RecordResult.of(
            parts,
            index=self.index,
            id=self.record.id,
            prompt_sha256=self.record.sha256,
            usage=Usage.of(n, tally.tokens),
            speculation=self.options.block(tally, about, self.drafts),
            **more,
        )
        if self.record.custom:
            result.calls = openai_calls(result.calls, self.record.custom)
        return result


@dataclass
class ActiveJob:
    """A running job and its answer so far.

    seen: tokens that the parser has taken. kept: prompt tokens from the prefix cache. scored: log-probabilities of the
    prompt's tokens so far, None for the first one, while the prompt is being scored. start, first: times of the start and of
    the first token.
    """

    job: Job
    run: Run
    text: AnswerReader
    chain: Any
    seen: int
    kept: int = 0
    scored: list[TokenLogprobs | None] | None = None
    parts: list[AnswerPart] = field(default_factory=list)
    start: float = field(default_factory=monotonic)
    first: float = 0.0

    @classmethod
    def begin(cls, job: Job, contexts: Any, *, cheap: bool = False) -> ActiveJob:
        """Create the sampler and start an empty answer. Raises OptionError or InputError for invalid sampler options.

        contexts: the `Contexts`. cheap: whether rows are, see `AnswerOptions.settled`.
        """
        text = job.reader(job.options.stop)
        job.options = job.options.settled(by_model=contexts.loop.draft_model, cheap=cheap)
        run, chain = job.options.begin(job.tokens, contexts.target)
        answer = cls(job, run, text, chain, len(job.tokens))
        if job.options.prompt_rows:
            answer.scored = [None]
        elif job.echo:
            answer.echo()
        return answer

    def echo(self) -> None:
        """Begin the answer with the prompt and its scores."""
        scores, self.scored = self.scored or [], None
        tokens = targets_own(self.job.tokens if scores else ())
        self._deliver([AnswerPart("content", self.job.echo)], tokens, scores)

    @property
    def shares(self) -> bool:
        """Whether others may begin with its text: while it is scored, the engine has only a part."""
        return self.scored is None

    @property
    def ready(self) -> bool:
        """Whether it may decode: it wants tokens, and its prompt is not being scored."""
        return not self.job.only_read and self.scored is None

    @property
    def error(self) -> PyspecError | None:
        """The error that ended it, if any."""
        return self.run.error and error_behind(self.chain, self.run.error)

    @property
    def late(self) -> bool:
        """Whether it has exceeded its timeout."""
        most = self.job.timeout
        return most is not None and monotonic() - self.start > most

    @property
    def done(self) -> bool:
        read = self.job.only_read and not self.run.missing
        return read or self.run.finish_reason is not None or self.text.done

    def emitted(
        self, tokens: tuple[Token, ...], plain: PlainDecode | None = None, took_ms: float = 0.0
    ) -> None:
        """Take a round's tokens. plain: estimate of the round without drafts, None for unknown. took_ms: its time."""
        self.seen += len(tokens)
        self.first = self.first or monotonic()
        if plain is not None:
            self.run.tally.against(plain.ms * len(tokens), took_ms, plain.error)
        parts = self.text.push([token.id for token in tokens])
        self._deliver(parts, tokens, self._likely(tokens))

    def _deliver(
        self,
        parts: Sequence[AnswerPart],
        tokens: tuple[Token, ...] = (),
        likely: Sequence[TokenLogprobs | None] = (),
    ) -> None:
        self.parts += parts
        if self.job.listener is not None:
            self.job.listener(Piece(tokens, parts=parts, likely=likely))

    def catch_up(self) -> None:
        """Take tokens emitted in a round that failed for others. Their sources are lost."""
        lost = self.run.tokens[self.seen :]
        if lost:
            self.emitted(targets_own(lost))

    def _likely(self, tokens: Sequence[Token]) -> list[TokenLogprobs]:
        rows = self.run.rows
        if not rows:
            return []
        found = [
            TokenLogprobs.of(row, token.id, self.job.alternatives or 0)
            for row, token in zip(rows, tokens, strict=False)
        ]
        rows.clear()
        return found

    def result(self, reason: str | None) -> RecordResult:
        """The result. reason: finish reason of an answer that was cut from outside."""
        if rest := self.text.finish():
            self._deliver(rest)
        ended = "stop" if self.text.done else self.run.finish_reason or "length"
        tally, end = self.run.tally, monotonic()
        return self.job.result(
            self.parts,
            tally,
            times_among(self.start, self.first or end, end, tally.tokens),
            self.kept,
            finish_reason=reason or self.text.reason(ended) or ended,
            reasoning_cut=self.text.inside,
            reasoned=self.text.reasoned,
            stop_string=self.text.stopped_by,
        )

    def close(self) -> None:
        """Free the sampler."""
        chain, self.chain = self.chain, None
        if chain is not None:
            self.run.sampler = 0
            chain.close()


_MAX_OVERTAKES = 8
# rounds of all sequences in which smaller jobs may overtake one that does not fit


class JobQueue:
    """A window of jobs, admitted longest first, so that a batch does not end with one long answer alone.

    window: number of jobs to choose from. in_order: admit first come, first served instead.
    """

    def __init__(self, window: int, n_slots: int, *, in_order: bool = False) -> None:
        self._window, self._max_overtakes = window, _MAX_OVERTAKES * n_slots
        self._in_order = in_order
        self.jobs: list[Job] = []
        """Jobs in reverse order of admission. Those that have to run alone are admitted first."""
        self._passed_by = 0

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def room(self) -> int:
        """Free places of the window."""
        return max(0, self._window - len(self.jobs))

    def add(self, job: Job) -> None:
        self.jobs.append(job)
        self.jobs.sort(key=lambda j: (j.alone, 0 if self._in_order else j.need, -j.index))

    def take(self, fits: Callable[[Job], bool]) -> Job | None:
        """The first job that fits; None if none does, or if one that does not has been overtaken too often."""
        for at in range(len(self.jobs) - 1, -1, -1):
            if fits(self.jobs[at]):
                job = self.jobs.pop(at)
                self._passed_by = 0 if at == len(self.jobs) else self._passed_by + 1
                return job
            if self._passed_by >= self._max_overtakes:
                break
        return None

    def take_ended(self, *, reads: bool) -> list[Job]:
        """Remove and return cancelled jobs, and unless `reads`, jobs that want only their prompt prefilled."""
        ended = [job for job in self.jobs if job.cancelled or (job.only_read and not reads)]
        for job in ended:
            self.jobs.remove(job)
        return ended
