"""The chat's model over `SpeculativeLlama`: one context for all turns, plain speed timed once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from pyspec.chat.model import AnswerStats, Ask, Progress
from pyspec.errors import PyspecError
from pyspec.llama import OFF, Speculation, SpeculativeLlama
from pyspec.store import file_sha256
from pyspec.stream import Piece, TextAssembler
from pyspec.template import PLAIN, ChatTemplate, Message
from pyspec.tokens import Step

PLAIN_FIRST = 16
"""Tokens decoded plainly in the first answer, to know what speculation is compared with."""

_WARM_UP = 3  # steps left out of the timing: the first decodes fault pages in and wake threads
_FEWEST = 8  # intervals below which a rate is not believed

Opener = Callable[[str, str], SpeculativeLlama]


@dataclass
class _Phase:
    """One call of `steps`: plain or speculating, and what came of it."""

    plain: bool
    block: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0


@dataclass
class _Run:
    """One answer in flight: all its text as tokens, prompt included, and what is shown of it."""

    ask: Ask
    text: list[int]
    shown: TextAssembler
    progress: Progress | None
    phases: list[_Phase] = field(default_factory=list)

    @property
    def emitted(self) -> int:
        """Tokens of the answer so far."""
        return len(self.text) - len(self.ask.prompt)


class LlamaChat:
    """A `ChatModel` that opens its `SpeculativeLlama` with `opener(draft, companion)`.

    Opening again, for `use`, has the context read anew; the conversation is the caller's.
    """

    def __init__(self, opener: Opener, draft: str = "auto", companion: str = "auto") -> None:
        self._opener = opener
        self._open(draft, companion)
        self._plain_rate: float | None = None
        self._stats: AnswerStats | None = None
        self._cancelled = False

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds."""
        return int(self._llm.n_ctx())

    @property
    def draft(self) -> str:
        """Name of what drafts, or none."""
        return self._names()[0]

    @property
    def companion(self) -> str:
        """Name of the companion, or none."""
        return self._names()[1]

    def _names(self) -> tuple[str, str]:
        assembly = self._llm._assembly  # noqa: SLF001 - results alone name them in public, and only after an answer
        return ("none", "none") if assembly is None else (assembly.draft, assembly.companion)

    @property
    def name(self) -> str:
        """Name of the target's file."""
        return Path(self._llm.model_path).stem

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages, open for the next answer."""
        return self._template.prompt(messages)

    def is_text(self, token: int) -> bool:
        """Whether an id stands for bytes of text: not out of range, not a control token."""
        return 0 <= token < self._llm.n_vocab() and bool(self._llm.piece(token))

    def piece(self, token: int) -> bytes:
        """Bytes of a token."""
        return self._llm.piece(token)

    def cancel(self) -> None:
        """End the answer in flight; safe from any thread."""
        self._cancelled = True  # the engine forgets its own flag where a new call of `steps` begins
        self._llm.cancel()

    def stats(self) -> AnswerStats | None:
        """What the last answer did; None where it did nothing."""
        return self._stats

    def sha256(self) -> str:
        """Hash of the target's file, in hex."""
        return file_sha256(self._llm.model_path)

    def describe(self) -> list[tuple[str, str]]:
        """Names and values that say what is loaded."""
        plain = f"{self._plain_rate:.1f} tok/s" if self._plain_rate else "not measured yet"
        return [
            ("target", self._llm.model_path),
            ("draft", self.draft),
            ("companion", self.companion),
            ("context", f"{self.n_ctx} tokens"),
            ("template", self._template.format.name),
            ("plain rate", plain),
        ]

    def close(self) -> None:
        """Free the models."""
        self._llm.close()

    def use(self, *, draft: str | None = None, companion: str | None = None) -> None:
        """Open again with another draft or companion; on an error, with the former ones."""
        words = (draft or self._words[0], companion or self._words[1])
        self._llm.close()  # first: two targets need not fit into memory
        try:
            self._open(*words)
        except (PyspecError, KeyboardInterrupt):
            self._open(*self._words)
            raise

    def _open(self, draft: str, companion: str) -> None:
        self._llm = self._opener(draft, companion)
        self._template = ChatTemplate.of(self._llm)
        self._words = (draft, companion)

    def answer(self, ask: Ask, progress: Progress | None = None) -> Generator[Piece, None, None]:
        """Answer, at first plainly where the plain rate is not known yet."""
        self._cancelled, self._stats = False, None
        stops = ("\nUser:",) if self._template.format is PLAIN else ()
        run = _Run(ask, list(ask.prompt), TextAssembler(self._llm.piece, stops), progress)
        lead, most = self._lead(ask), ask.max_tokens
        try:
            if lead and (
                yield from self._phase(run, OFF, lead if most is None else min(lead, most))
            ):
                return
            how = Speculation(verification=ask.rule, length=ask.length, draft_max=ask.draft_max)
            yield from self._phase(run, how, most if most is None else most - run.emitted)
        finally:
            self._stats = self._summary(run)

    def _lead(self, ask: Ask) -> int:
        if ask.plain_first is not None:
            return ask.plain_first
        # penalties look back on the tokens of one call, so such answers are not cut in two
        measured = self._plain_rate is not None or self.draft == "none" or ask.sampling.penalised
        return 0 if measured else PLAIN_FIRST

    def _phase(
        self, run: _Run, how: Speculation, limit: int | None
    ) -> Generator[Piece, None, bool]:
        """Pieces of one call of `steps`; whether the answer ended in it."""
        before, phase, times = self._llm.last_speculation, _Phase(not how.enabled), [perf_counter()]
        steps = self._steps(run, how, limit)
        try:
            for step in steps:
                times.append(perf_counter())
                phase.tokens += len(step.tokens)
                ids = [token.id for token in step.tokens]
                run.text += ids
                shown = run.shown.push(ids)
                reason = self._reason(step.finish_reason, run)
                yield Piece(shown + (run.shown.finish() if reason else ""), step.tokens, reason)
                if reason:
                    return True
            return False
        finally:
            steps.close()
            if self._llm.last_speculation is not before:  # else nothing was decoded
                phase.block = self._llm.last_speculation
                run.phases.append(phase)
            if phase.plain:
                self._time_plain(times)

    def _steps(self, run: _Run, how: Speculation, limit: int | None) -> Generator[Step, None, None]:
        # the sampler starts anew in each phase: with the same seed it would repeat its draws
        seed = (run.ask.sampling.seed + len(run.phases)) & 0xFFFFFFFF
        sampling = replace(run.ask.sampling, seed=seed)
        return self._llm.steps(
            list(run.text), sampling, max_tokens=limit, speculation=how, progress=run.progress
        )

    def _reason(self, reason: str | None, run: _Run) -> str | None:
        if run.shown.done:
            return "stop"
        if self._cancelled:
            return "cancelled"
        more = run.ask.max_tokens is None or run.emitted < run.ask.max_tokens
        return None if reason == "length" and more else reason

    def _time_plain(self, times: list[float]) -> None:
        times = times[_WARM_UP:]
        intervals = [after - before for before, after in pairwise(times)]
        if len(intervals) >= _FEWEST:
            self._plain_rate = 1.0 / median(intervals)

    def _summary(self, run: _Run) -> AnswerStats | None:
        if not (phases := run.phases):
            return None
        first, last = phases[0].block, phases[-1].block
        return AnswerStats(
            tokens=sum(phase.tokens for phase in phases),
            plain_tokens=sum(phase.tokens for phase in phases if phase.plain),
            rate=last["timings"]["tokens_per_second"],
            plain_rate=self._plain_rate,
            drafted=last["drafted"],
            verified=last["verified"],
            accepted=last["accepted"],
            relaxed=last["relaxed"],
            nats=last["relaxed_nats"],
            mean_length=last["mean_length"],
            prompt_tokens=first["prompt_tokens"],
            prompt_kept=first["prompt_kept"],
            first_token_ms=first["timings"]["first_token_ms"],
            total_ms=sum(phase.block["timings"]["total_ms"] for phase in phases),
            rule=run.ask.rule.name,
            draft=self.draft,
            companion=self.companion,
        )
