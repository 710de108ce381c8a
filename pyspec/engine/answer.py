"""An answer, from its request to its last token; and the queue in which answers wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pyspec.engine.options import AnswerOptions
from pyspec.engine.round import Run
from pyspec.engine.statistics import PlainDecode, Tally, speculation_report, times_among
from pyspec.errors import PyspecError
from pyspec.requests.records import Record
from pyspec.sampling.chain import error_behind
from pyspec.text.answer import AnswerReader
from pyspec.text.parts import (
    AnswerPart,
    Piece,
    RecordResult,
    Token,
    TokenLogprobs,
    Usage,
    targets_own,
)


@dataclass(eq=False)  # each is one of its own: what is asked for twice is answered twice
class Answer:
    """What a record asks for, and what came of it so far. Waits in a queue, then runs on a sequence."""

    index: int
    record: Record
    tokens: list[int]  # the prompt
    options: AnswerOptions
    reader: AnswerReader
    need: int  # KV cells that it may take
    # called with each round's piece and with the result, in the engine's thread
    listener: Callable[[Piece | RecordResult], None] | None = None
    alternatives: int | None = None  # how many likely tokens to return at each position
    cancelled: bool = False  # may be set from any thread; it ends before the next round
    alone: bool = False  # whether no other may run beside it
    timeout: float | None = None  # seconds
    owner: str = ""  # only texts of the same owner are drafted for it
    echo: str = ""  # the prompt's text if the answer begins with it
    predicted: Sequence[int] = ()  # tokens of a predicted answer, to draft from
    drafts: tuple[str, str] = ("none", "none")  # names of draft and companion

    run: Run = field(init=False)  # what rounds need of it, once it has begun
    begun: bool = False
    start: float = 0.0  # when it began, and `first` when its first token came, in seconds
    first: float = 0.0
    kept: int = 0  # prompt tokens from the prefix cache
    # while the prompt is scored, its log-probabilities so far; the first token has none
    scored: list[TokenLogprobs | None] | None = None
    parts: list[AnswerPart] = field(default_factory=list)
    _seen: int = 0  # tokens that the reader has taken
    _chain: Any = None

    def begin(self, contexts: Any) -> None:
        """Create the sampler and the run, in `Contexts`. Raises OptionError or InputError for invalid sampler options."""
        self.options = self.options.settled()
        self.run, self._chain = self.options.begin(self.tokens, contexts.target)
        self.begun, self.start, self._seen = True, monotonic(), len(self.tokens)
        if self.options.prompt_rows:
            self.scored = [None]
        elif self.echo:
            self.repeat_prompt()

    def repeat_prompt(self) -> None:
        """Begin the text with the prompt and its scores."""
        scores, self.scored = self.scored or [], None
        tokens = targets_own(self.tokens if scores else ())
        self._deliver([AnswerPart("content", self.echo)], tokens, scores)

    @property
    def max_tokens(self) -> int:
        return self.options.max_tokens or 0

    @property
    def only_read(self) -> bool:
        """Whether it wants neither tokens nor the prompt's probabilities: it only fills the prefix cache."""
        return self.max_tokens == 0 and not self.options.prompt_rows

    @property
    def shares(self) -> bool:
        """Whether others may begin with its text: while it is scored, the engine has only a part."""
        return self.scored is None

    @property
    def ready(self) -> bool:
        """Whether it may decode: it wants tokens, and its prompt is not being scored."""
        return not self.only_read and self.scored is None

    @property
    def error(self) -> PyspecError | None:
        return self.run.error and error_behind(self._chain, self.run.error)

    @property
    def overdue(self) -> bool:
        return self.timeout is not None and monotonic() - self.start > self.timeout

    @property
    def done(self) -> bool:
        read = self.only_read and not self.run.missing
        return read or self.run.finish_reason is not None or self.reader.done

    def emitted(
        self, tokens: tuple[Token, ...], plain: PlainDecode | None = None, took_ms: float = 0.0
    ) -> None:
        """Take a round's tokens. plain: estimate of the round without drafts, None for unknown. took_ms: its time."""
        self._seen += len(tokens)
        self.first = self.first or monotonic()
        if plain is not None:
            self.run.tally.add_times(plain.ms * len(tokens), took_ms, plain.error)
        parts = self.reader.push([token.id for token in tokens])
        self._deliver(parts, tokens, self._likely(tokens))

    def _deliver(
        self,
        parts: Sequence[AnswerPart],
        tokens: tuple[Token, ...] = (),
        likely: Sequence[TokenLogprobs | None] = (),
    ) -> None:
        self.parts += parts
        if self.listener is not None:
            self.listener(Piece(tokens, parts=parts, likely=likely))

    def catch_up(self) -> None:
        """Take tokens emitted in a round that failed for others. Their sources are lost."""
        lost = self.run.tokens[self._seen :]
        if lost:
            self.emitted(targets_own(lost))

    def _likely(self, tokens: Sequence[Token]) -> list[TokenLogprobs]:
        rows = self.run.rows
        if not rows:
            return []
        found = [
            TokenLogprobs.of(row, token.id, self.alternatives or 0)
            for row, token in zip(rows, tokens, strict=False)
        ]
        rows.clear()
        return found

    def result(self, reason: str | None = None) -> RecordResult:
        """The result. reason: finish reason of an answer that was cut from outside."""
        if rest := self.reader.finish():
            self._deliver(rest)
        tally, ended = (self.run.tally, self.run.finish_reason) if self.begun else (Tally(), None)
        ended = "stop" if self.reader.done else ended or "length"
        n, end = len(self.tokens), monotonic()
        start = self.start or end
        times = times_among(start, self.first or end, end, tally.tokens)
        report = speculation_report(tally, (n, min(self.kept, n)), times)
        return RecordResult.of(
            self.parts,
            index=self.index,
            id=self.record.id,
            prompt_sha256=self.record.sha256,
            usage=Usage.of(n, tally.tokens),
            speculation=self.options.block(tally, report, self.drafts),
            finish_reason=reason or self.reader.reason(ended) or ended,
            reasoning_cut=self.reader.inside,
            reasoned=self.reader.reasoned,
            stop_string=self.reader.stopped_by,
        )

    def close(self) -> None:
        """Free the sampler."""
        chain, self._chain = self._chain, None
        if chain is not None:
            self.run.sampler = 0
            chain.close()


# rounds of all sequences in which smaller ones may overtake one that does not fit
_MAX_OVERTAKES = 8


class AnswerQueue:
    """A window of answers, admitted longest first, so that a batch does not end with one long answer alone.

    window: number of answers to choose from. in_order: admit first come, first served instead.
    """

    def __init__(self, window: int, n_slots: int, *, in_order: bool = False) -> None:
        self._window, self._max_overtakes = window, _MAX_OVERTAKES * n_slots
        self._in_order = in_order
        self.answers: list[Answer] = []
        """Answers in reverse order of admission. Those that have to run alone are admitted first."""
        self._passed_by = 0

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def room(self) -> int:
        """Free places of the window."""
        return max(0, self._window - len(self.answers))

    def add(self, answer: Answer) -> None:
        self.answers.append(answer)
        self.answers.sort(key=lambda a: (a.alone, 0 if self._in_order else a.need, -a.index))

    def take(self, fits: Callable[[Answer], bool]) -> Answer | None:
        """The first answer that fits; None if none does, or if one that does not has been overtaken too often."""
        for at in range(len(self.answers) - 1, -1, -1):
            if fits(self.answers[at]):
                answer = self.answers.pop(at)
                self._passed_by = 0 if at == len(self.answers) else self._passed_by + 1
                return answer
            if self._passed_by >= self._max_overtakes:
                break
        return None

    def take_ended(self, *, reads: bool) -> list[Answer]:
        """Remove and return those cancelled, and unless `reads`, those that want only their prompt prefilled."""
        ended = [
            answer
            for answer in self.answers
            if answer.cancelled or (answer.only_read and not reads)
        ]
        for answer in ended:
            self.answers.remove(answer)
        return ended
