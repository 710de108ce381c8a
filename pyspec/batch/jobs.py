"""What one record becomes: a job with its prompt as tokens, its sampler and limits, and its answer in flight."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyspec.batch.records import COMPLETION, SAMPLER_FIELDS, Record, Result, Usage, failed
from pyspec.engine.handle import MAX_DRAFT, Gate
from pyspec.engine.models import address
from pyspec.engine.runs import Run
from pyspec.errors import ContextOverflow, InputError, OptionError, PyspecError
from pyspec.grammar.masks import MaskProcess
from pyspec.limits import check_ranges
from pyspec.noise import derive_seed
from pyspec.rules import Strict, Verification
from pyspec.sampling import Constraint, Sampling, build_chain
from pyspec.text.answer import AnswerReader, Speech
from pyspec.text.parts import AnswerPart, WholeAnswer
from pyspec.text.stream import check_stops
from pyspec.text.template import ChatTemplate
from pyspec.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_TELLING = ("system", "developer")


@dataclass(frozen=True)
class Settings:
    """What holds for records that say nothing else.

    max_tokens: of an answer. raw: prompts go to the model without a chat template. timeout: seconds that an answer may
    take from when its prompt begins to be read. sampling.seed is the batch's: each record's own is drawn from it and
    the record's id, so neither order nor neighbours matter.
    """

    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0, seed=0))
    rule: Verification = field(default_factory=Strict)
    max_tokens: int = 512
    system: str | None = None
    stop: tuple[str, ...] = ()
    raw: bool = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_ranges({"timeout": self.timeout})
        check_stops(self.stop)


@dataclass
class Job:
    """One record ready to run.

    need: cells of the KV cache, tokens. listener: hears of each round, in the thread that decodes.
    alternatives: how many of the likeliest tokens it is told with each; None for none at all. reader: makes what takes the
    answer apart.
    draft_max: longest draft. cancelled: set from any thread; the job then leaves before the next round. alone: nothing may run
    beside it. begun: what there is of its answer already. timeout: seconds that it may take.
    """

    index: int
    record: Record
    tokens: list[int]
    sampling: Sampling
    rule: Verification
    max_tokens: int
    reader: Callable[[], AnswerReader]
    need: int
    grammar: Constraint | None = None
    listener: Callable[[Delta], None] | None = None
    alternatives: int | None = None
    draft_max: int = MAX_DRAFT
    cancelled: bool = False
    alone: bool = False
    begun: Answering | None = None
    timeout: float | None = None

    def result(
        self, parts: Sequence[AnswerPart], n: int, finish_reason: str, speculation: dict[str, Any]
    ) -> Result:
        """The answer: `n` tokens that say these parts."""
        answer = WholeAnswer.of(parts)
        usage = Usage(len(self.tokens), n, len(self.tokens) + n)
        return Result(
            index=self.index,
            id=self.record.id,
            prompt_sha256=self.record.sha256,
            text=answer.content,
            reasoning=answer.reasoning,
            calls=[call.as_openai() for call in answer.calls],
            finish_reason=finish_reason,
            usage=usage,
            speculation={"verification": self.rule.name, **self.sampling.published, **speculation},
        )


class JobMaker:
    """Makes jobs for one target. n_ctx: positions a sequence may use."""

    def __init__(self, target: Any, settings: Settings, n_ctx: int) -> None:
        self._target = target
        self._settings = settings
        self._n_ctx = n_ctx
        self._template = ChatTemplate.of(target)
        self._template.limit(n_ctx)
        self._speech = Speech.of(target)

    def make(self, index: int, record: Record) -> Job | Result:
        """A job, or the result of a record that has an error or does not fit."""
        if record.error is not None:
            return failed(index, record, record.error)
        try:
            return self.job(index, record)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one record, the others go on
            return failed(index, record, error)

    def job(self, index: int, record: Record) -> Job:
        """A job. Raises InputError, OptionError or ContextOverflow."""
        record.check()
        tokens = self._tokens(record)
        if len(tokens) > self._n_ctx:
            raise ContextOverflow(self._n_ctx, len(tokens))
        settings = self._settings
        wanted = settings.max_tokens if record.max_tokens is None else record.max_tokens
        sampling = self._sampling(record)
        functions = {tool["name"]: tool.get("parameters") for tool in record.tools or ()}
        is_chat = self._is_chat(record)
        stop = settings.stop if record.stop is None else tuple(record.stop)
        reader = partial(self._speech.plain_reader, stop)
        shape: tuple[str, str | None] | None = None
        if record.grammar is not None:
            shape = record.grammar, None
        if is_chat:
            stop = (*stop, *self._template.stop)
            reader = partial(self._speech.reader, tokens, stop, functions=functions, name=record.id)
            shape = self._speech.shape(
                tokens, record.grammar, functions, record.tool_choice, record.parallel
            )
        grammar = None if shape is None else Constraint(*shape)
        return Job(
            index,
            record,
            tokens,
            sampling,
            Strict() if sampling.shaped or grammar is not None else settings.rule,
            wanted,
            reader,
            min(len(tokens) + wanted, self._n_ctx),
            grammar,
            timeout=settings.timeout,
        )

    def _is_chat(self, record: Record) -> bool:
        """Whether the prompt is made by the chat template; without one, a prompt by itself is a text to go on with."""
        if record.messages is not None or record.form == COMPLETION:
            return record.messages is not None
        alone = self._template.is_plain and self._system(record) is None
        return record.tokens is None and not (self._settings.raw or alone)

    def _sampling(self, record: Record) -> Sampling:
        base = self._settings.sampling
        own = {name: getattr(record, name) for name in SAMPLER_FIELDS}
        own = {name: value for name, value in own.items() if value is not None}
        for token in own.get("logit_bias", ()):
            if not 0 <= token < self._target.n_vocab():
                raise OptionError(f"logit_bias names token {token}", "there is no such token")
        # of one's own by the record's id, so that neither order nor neighbours matter
        seed = derive_seed(base.seed, record.id) if record.seed is None else record.seed
        return replace(base, seed=seed, **own).seeded()

    def _tokens(self, record: Record) -> list[int]:
        if record.tokens is not None:
            if not all(0 <= token < self._target.n_vocab() for token in record.tokens):
                raise InputError("the prompt names tokens that do not exist")
            return list(record.tokens)
        if record.messages is None and not self._is_chat(record):
            return self._template.bare(record.prompt or "")
        turns = record.messages
        if turns is None:
            turns = [{"role": "user", "content": record.prompt or ""}]
        system = self._system(record)
        if system is not None and not any(turn.get("role") in _TELLING for turn in turns):
            turns = [{"role": "system", "content": system}, *turns]
        if len(turns) > self._n_ctx:  # a turn is a token at least
            raise ContextOverflow(self._n_ctx, len(turns), counted=False)
        tools = [{"type": "function", "function": function} for function in record.tools or ()]
        return self._template.prompt(turns, tools=tools, arguments=record.chat_template_kwargs)

    def _system(self, record: Record) -> str | None:
        return self._settings.system if record.system is None else record.system


# -- the window of jobs that wait --------------------------------------------------------------------------------------


_PATIENCE = 8
# times that all sequences may be started anew before a record that does not fit is waited for


class Waiting:
    """Jobs in a window, of which the one with the most to do goes first.

    So the end of a batch is not one long answer alone. window: how many are chosen from. in_order: the
    one that came first goes first instead.
    """

    def __init__(self, window: int, n_slots: int, *, in_order: bool = False) -> None:
        self._window, self._patience = window, _PATIENCE * n_slots
        self._in_order = in_order
        self.jobs: list[Job] = []
        """The one that goes next is the last; those that have to run alone come before all others."""
        self._passed_by = 0

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def room(self) -> int:
        """How many more jobs the window takes."""
        return max(0, self._window - len(self.jobs))

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self.jobs.append(job)
        self.jobs.sort(key=lambda j: (j.alone, 0 if self._in_order else j.need, -j.index))

    def take(self, fits: Callable[[Job], bool]) -> Job | None:
        """The job with the most to do among those that fit; None where none does, or one that does not has waited for long."""
        for at in range(len(self.jobs) - 1, -1, -1):
            if fits(self.jobs[at]):
                job = self.jobs.pop(at)
                self._passed_by = 0 if at == len(self.jobs) else self._passed_by + 1
                return job
            if self._passed_by >= self._patience:
                break
        return None

    def take_ended(self) -> list[Job]:
        """Those that ask for no tokens, and those that were cancelled."""
        ended = [job for job in self.jobs if job.max_tokens == 0 or job.cancelled]
        for job in ended:
            self.jobs.remove(job)
        return ended


# -- the answer in flight ----------------------------------------------------------------------------------------------


MASK_S = 0.3
"""A row may wait so long for what a grammar allows there, while others wait for the row."""


@dataclass(frozen=True, slots=True)
class Likely:
    """Log-probabilities at one place: of the token that was emitted, and of the likeliest ones as (id, value)."""

    value: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Delta:
    """What a round added to an answer; the last one has the result. likely: one a token, where they were asked for."""

    parts: Sequence[AnswerPart] = ()
    tokens: tuple[Token, ...] = ()
    likely: list[Likely] = field(default_factory=list)
    result: Result | None = None


@dataclass
class Answering:
    """A job on its sequence. missing: prompt tokens still to be read, the last one aside. seen: tokens whose text is known."""

    job: Job
    run: Run
    text: AnswerReader
    chain: Any
    seen: int
    missing: int = 0
    parts: list[AnswerPart] = field(default_factory=list)
    start: float = field(default_factory=monotonic)

    @classmethod
    def begin(cls, job: Job, target: Any) -> Answering:
        """Nothing is read yet. Raises OptionError or InputError for what cannot be asked of a sampler."""
        text = job.reader()
        chain = build_chain(job.sampling, target, job.grammar, patience=MASK_S)
        gate = Gate(job.rule, sampled=job.sampling.draw == "apart")
        run = Run(-1, list(job.tokens), gate, job.max_tokens, coupling=job.sampling.coupling)
        run.sampler = 0 if chain is None else address(chain.sampler)
        run.rows = None if job.alternatives is None else []
        return cls(job, run, text, chain, len(job.tokens))

    @property
    def masks(self) -> MaskProcess | None:
        """Its grammar at work, if it has one."""
        hook = None if self.chain is None else self.chain.masks
        return None if hook is None else hook.process

    @property
    def ready(self) -> bool:
        """Whether it is known what its grammar allows next."""
        masks = self.masks
        return masks is None or masks.ready

    @property
    def error(self) -> PyspecError | None:
        """Why it cannot go on, if it cannot."""
        if self.run.error is None or self.masks is None:
            return self.run.error
        return self.chain.masks.error or self.run.error

    def place(self, seq: int, kept: int) -> None:
        """It runs on this sequence, whose KV holds its first `kept` tokens."""
        self.run.seq, self.missing = seq, len(self.run.tokens) - 1 - kept
        self.run.unread = 0

    @property
    def late(self) -> bool:
        """Whether it takes longer than it may."""
        most = self.job.timeout
        return most is not None and monotonic() - self.start > most

    @property
    def done(self) -> bool:
        """Whether nothing is to come."""
        return self.run.finish_reason is not None or self.text.done

    def emitted(self, tokens: tuple[Token, ...], plain_ms: float, took_ms: float) -> None:
        """Take what a round emitted. plain_ms: what a round without drafts would have taken, 0 for not known."""
        parts = self.text.push([token.id for token in tokens])
        self.parts += parts
        self.seen += len(tokens)
        if plain_ms:
            self.run.tally.plain_ms += plain_ms * len(tokens)
            self.run.tally.took_ms += took_ms
        likely = self._likely(tokens)
        if self.job.listener is not None:
            self.job.listener(Delta(parts, tokens, likely))

    def catch_up(self) -> None:
        """Take what was emitted in a round that failed for others; where it came from is not known any more."""
        lost = self.run.tokens[self.seen :]
        if lost:
            self.emitted(tuple(Token(i, 0, 0.0, i) for i in lost), 0.0, 0.0)  # type: ignore[arg-type]

    def _likely(self, tokens: Sequence[Token]) -> list[Likely]:
        rows = self.run.rows
        if not rows:
            return []
        found = [
            likeliest(row, token.id, self.job.alternatives or 0)
            for row, token in zip(rows, tokens, strict=False)
        ]
        rows.clear()
        return found

    def result(self, reason: str | None) -> Result:
        """The answer; `reason` where it was ended from outside."""
        rest = self.text.finish()
        self.parts += rest
        if rest and self.job.listener is not None:
            self.job.listener(Delta(rest))
        ended = "stop" if self.text.done else self.run.finish_reason or "length"
        tally = self.run.tally
        block = tally.as_dict()
        if tally.speed_against_plain:
            block["speed_against_plain"] = tally.speed_against_plain
        result = self.job.result(
            self.parts, tally.tokens, reason or self.text.reason(ended) or ended, block
        )
        result.reasoning_cut = self.text.inside
        return result

    def close(self) -> None:
        """Free the sampler."""
        chain, self.chain = self.chain, None
        if chain is not None:
            self.run.sampler = 0
            chain.close()


def likeliest(row: npt.NDArray[np.float32], token: int, n: int) -> Likely:
    """Log-softmax of a row of logits [n_vocab] at `token`, and its n largest values."""
    wide = row.astype(np.float64)
    logs = wide - wide.max()
    logs -= np.log(np.exp(logs).sum())
    top = np.argpartition(-logs, n)[:n] if n else np.empty(0, np.int64)
    top = top[np.argsort(-logs[top], kind="stable")]
    return Likely(float(logs[token]), [(int(i), float(logs[i])) for i in top])
