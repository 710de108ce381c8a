"""Answers of many variants and seeds to one question, side by side: a sequence each, one decode per round for all of them.

A variant is a mode (see tasks.py) and, joined by `+`, what the experiment changes; with `@N` at the end it answers only the first
N questions.

    temp:T      the target samples at temperature T
    random      nothing is drafted: at open gates the runner-up is taken at random (above temperature 0 the runner-up
                with its noise, as in the rule; with `apart`, the one of the row's two best that was not drawn), as
                often as the margin rule of the same gate relaxed in earlier answers (deviation alone, without a
                draft's preference)
    thin        the drafted runner-up is taken p2 / p1 of the time, not always

    strict+fixed:4   margin+fixed:4   margin+thin+fixed:4   margin/gap=0.5+random   plain+temp:0.3@80

Answers depend on the rule and the drafts, not on the clock, so side by side they are the same as alone, up to rounding. Speed is
measured by `bench/compare.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from pyspec.draft.policies import MAX_FIXED, parse_length
from pyspec.draft.simple import FixedPolicy
from pyspec.engine.assembly import choose_parts, states_of
from pyspec.engine.contexts import Contexts, Layout, Models, padded
from pyspec.engine.handle import Role
from pyspec.engine.models import SideOptions
from pyspec.engine.offload import placed
from pyspec.engine.options import AnswerOptions, Speculation
from pyspec.engine.round import Run
from pyspec.errors import OptionError
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Margin
from pyspec.text.template import ChatTemplate

from .logits import TopTwo, nats_of, ready, top_two
from .questions import Question, Report
from .records import RunLog, RunRecord, TimedAnswer, describe
from .tasks import MeasureError, Mode, Options, each_once, parse_mode

_AS_TARGET = SideOptions()
_EXTRAS = ("random", "thin", "temp")
_HINT = "variants look like plain, strict+fixed:4, margin+thin+fixed:4, margin+random, plain+temp:0.3@80"


@dataclass(frozen=True)
class Variant(Mode):
    """A mode for an experiment. extras: by name, with the number after the colon, 0 if there is none.

    first: how many questions it answers, from the first; None for all.
    """

    extras: dict[str, float] = field(default_factory=dict)
    first: int | None = None

    @property
    def draft_max(self) -> int:
        """Tokens drafted per round."""
        length = parse_length(self.length)
        drafts = self.enabled and "random" not in self.extras
        return int(length.value) if drafts and length.name == "fixed" else 0

    @property
    def margin(self) -> Margin | None:
        """The margin rule, if that is its rule."""
        return self.rule if isinstance(self.rule, Margin) else None


def parse_variants(text: str) -> list[Variant]:
    """Parse comma-separated variants, each named once. Raises OptionError."""
    return each_once(text, parse_variant, _HINT)


def parse_variant(text: str) -> Variant:
    """Parse one variant; see the module's docstring. Raises OptionError."""
    shown = text.strip()[:60]
    named, at, first = text.strip().lower().partition("@")
    parts = named.split("+")
    extras = [part for part in parts if part.partition(":")[0] in _EXTRAS]
    mode = parse_mode("+".join(part for part in parts if part not in extras))
    try:
        numbers = {name: float(n or 0.0) for name, _, n in (e.partition(":") for e in extras)}
        most = int(first) if at else None
    except ValueError:
        raise OptionError(f"what follows : or @ in {shown!r} is not a number", _HINT) from None
    if mode.enabled and mode.length == "auto" and "random" not in numbers:
        raise OptionError(f"the variant {shown!r} has no fixed length", _HINT)
    if numbers.keys() - {"temp"} and not isinstance(mode.rule, Margin):
        raise OptionError(f"{shown!r} has no margin rule to change", _HINT)
    name = "+".join([mode.name, *(k + (f":{v:g}" if v else "") for k, v in numbers.items())])
    return Variant(**{**vars(mode), "name": name}, extras=numbers, first=most)


@dataclass
class _Answer:
    """A variant on its sequence. open: emitted tokens at whose row the gate was open; nats: of each token."""

    variant: Variant
    run: Run
    sampling: Sampling
    chain: Any
    random: random.Random
    tokens: list[int] = field(default_factory=list)
    nats: list[float] = field(default_factory=list)
    open: int = 0

    def before(self) -> None:
        """Set the gate for the next round."""
        margin = self.variant.margin
        if margin is not None and "thin" in self.variant.extras:
            gap = -math.log(max(self.random.random(), 1e-12))
            self.run.gate.gate.gap = min(gap, margin.gap)

    def best(self, row: npt.NDArray[np.float32], at: int) -> TopTwo:
        """The two best tokens for its rule, in a row of raw logits that chooses the token at position `at`."""
        return top_two(row, self.chain, self.run.coupling, at)

    def opens(self, best: TopTwo) -> bool:
        """Whether its gate is open with these two best tokens."""
        margin = self.variant.margin
        if margin is None:
            return False
        temperature = self.sampling.temperature
        # where llama.cpp draws, min-p is the first to cut a runner-up; coupled, truncation came before the noise
        cut = -math.log(self.sampling.min_p) if self.sampling.draw == "apart" else math.inf
        near = best.gap(temperature) <= margin.gap and best.z1 - best.z2 <= cut
        return best.z1 > 0 and best.z2 / best.z1 > margin.theta and near

    def after(self, ids: Sequence[int], deviated: int | None) -> None:
        """Store what a round emitted; `deviated` replaces the last token."""
        rows = self.run.rows or []
        emitted = [*ids[:-1], deviated] if deviated is not None else ids
        begin = len(self.run.tokens) - len(ids)
        for at, (row, token) in enumerate(zip(rows, emitted), begin):
            self.nats.append(round(nats_of(row, token), 5))
            self.open += self.variant.margin is not None and self.opens(self.best(row, at))
        self.tokens += emitted
        rows.clear()


class SideBySide:
    """One target with a sequence for each variant and seed. drafting: as for `SpeculativeLlama`.

    n_ctx: positions per sequence; seeds: per variant; engine: llama.cpp's options among `kwargs`, as a page prints them. One
    thread at a time.
    """

    def __init__(
        self, model: str, drafting: str, variants: Sequence[Variant], *, n_ctx: int,
        max_tokens: int, seeds: int = 1, side_options: SideOptions = _AS_TARGET, engine: str = "",
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self.variants, self.max_tokens, self.n_ctx = list(variants), max_tokens, n_ctx
        self.engine = engine
        n = len(variants) * seeds
        kwargs["room_for"] = ((n + 1) * n_ctx, n + 1)
        self.models = Models(model, "none", "none", **kwargs)
        self.target = self.models.target
        parts = choose_parts(self.target, drafting, "none")
        self.models.parts = parts
        # a draft that reads states reads the prompt in each sequence; others share it
        each = n_ctx if states_of(parts, self.target) is not None else max_tokens + 80
        layout = Layout(padded(n_ctx + n * each))
        self._contexts = Contexts(self.models, n + 1, n_ctx, layout, side_options)
        self._engine, self._loop = self._contexts.engine, self._contexts.loop

    @property
    def files(self) -> dict[str, Path]:
        """All files that take part, by role."""
        return self.models.files

    @property
    def placed(self) -> str:
        """What lies on which devices, in one line; empty if all is on the processor."""
        return placed(self.target, self._contexts.assembly.placed)

    def answer(
        self,
        due: Sequence[tuple[Variant, Sampling]],
        prompt: Sequence[int],
        rates: dict[str, float],
    ) -> list[TimedAnswer]:
        """Answer one turn for each that is `due`. rates: how often each `random` variant takes an open gate.

        Noise belongs to a position: variants with the same seed draw the same, whatever was drafted.
        """
        self._read(prompt, len(due))
        answers = [self._begin(i, *each, prompt) for i, each in enumerate(due, 1)]
        policy = FixedPolicy(MAX_FIXED)  # each run's own draft_max sets the length
        live = answers
        while live := [answer for answer in live if answer.run.finish_reason is None]:
            for answer in live:
                answer.before()
            steps = self._loop.round([answer.run for answer in live], policy)
            for answer, step in zip(live, steps, strict=True):
                deviated = self._deviated(answer, rates.get(answer.variant.name, 0.0))
                answer.after([token.id for token in step.tokens], deviated)
        if self._loop.failed:
            raise MeasureError(f"{' and '.join(self._loop.failed)} failed", "see the warning above")
        for seq in range(len(due) + 1):
            self._engine.set_tokens(seq, ())
        return [self._end(answer, len(prompt)) for answer in answers]

    def _read(self, prompt: Sequence[int], n: int) -> None:
        """Read the prompt into sequence 0 once, and copy it to n others."""
        shared = self._loop.draft_model and not self._contexts.assembly.parts.reads_states
        ready(self._engine, prompt, len(prompt), *([Role.DRAFT] if shared else []))
        for seq in range(1, n + 1):
            self._engine.set_tokens(seq, ())
            self._engine.copy_prefix(0, seq, len(prompt) - 1)
            self._engine.set_tokens(seq, prompt)

    def _begin(
        self, seq: int, variant: Variant, sampling: Sampling, prompt: Sequence[int]
    ) -> _Answer:
        temperature = variant.extras.get("temp", sampling.temperature)
        own = variant.sampling(Sampling(temperature=temperature, seed=sampling.seed))
        asked = AnswerOptions(
            own,
            Speculation(verification=variant.rule, draft_max=variant.draft_max),
            min(self.max_tokens, self.n_ctx - len(prompt)),
            keep_rows=True,
            drafting=variant.drafting if variant.draft_max else "nothing",
        )
        run, chain = asked.begin(prompt, self.target)
        run.seq = seq
        rng = random.Random(f"{sampling.seed} {variant.name}")  # noqa: S311 - reproducible, not secret
        return _Answer(variant, run, own, chain, rng)

    def _deviated(self, answer: _Answer, rate: float) -> int | None:
        """For a `random` variant that deviates here, one of the rule's two best tokens, which replaces the target's choice."""
        run = answer.run
        if "random" not in answer.variant.extras or not run.rows or run.finish_reason == "stop":
            return None
        best = answer.best(run.rows[-1], len(run.tokens) - 1)
        if not answer.opens(best) or answer.random.random() >= rate:
            return None
        taken = answer.random.choice([t for t in (best.first, best.second) if t != run.tokens[-1]])
        if self._special(taken):
            return None
        run.tokens[-1] = taken
        run.tally.relaxed += 1
        if taken == best.second:
            run.tally.relaxed_nats += best.gap(answer.sampling.temperature)
        self._engine.set_tokens(run.seq, run.tokens)
        return taken

    def _special(self, token: int) -> bool:
        """Whether a token ends a text or is a control token: such a token is never taken for another."""
        vocab = self.target._model.vocab  # noqa: SLF001 - llama_cpp does not expose it otherwise
        ends = llama_cpp.llama_vocab_is_eog(vocab, token)
        return bool(ends or llama_cpp.llama_vocab_is_control(vocab, token))

    def _end(self, answer: _Answer, n_prompt: int) -> TimedAnswer:
        if answer.chain is not None:
            answer.chain.close()
        counts = {**answer.run.tally.as_dict(), "open": answer.open}
        text = self.target.detokenize(answer.tokens).decode("utf-8", "replace")
        return TimedAnswer(
            n_prompt, answer.tokens, answer.run.finish_reason or "length", 0.0, 0.0, 0.0,
            speculation=counts, text=text, nats=answer.nats,
        )  # fmt: skip

    def close(self) -> None:
        """Free contexts and models."""
        self._contexts.close()
        self.models.close()


def answer_all(
    sides: SideBySide,
    questions: Sequence[Question],
    options: Options,
    folder: Path,
    report: Report = lambda *_: None,
) -> list[RunRecord]:
    """Answer every question's first turn with all variants and `options.repeat` seeds, side by side; what `folder` has stays.

    A question that does not fit the context is skipped; Ctrl-C stops with what there is. Raises ResumeMismatch.
    """
    setup = describe(sides.target, sides.files, options, questions, sides.n_ctx, sides.engine)
    journal = RunLog(folder / "runs.jsonl", setup)
    template = ChatTemplate.of(sides.target)

    def lacking(i: int) -> list[tuple[Variant, int]]:
        return [
            (variant, repeat)
            for repeat in range(options.repeat)
            for variant in sides.variants
            if variant.first is None or i < variant.first
            if not journal.has(variant.name, questions[i].question_id, repeat)
        ]

    work = [(question, left) for i, question in enumerate(questions) if (left := lacking(i))]
    for done, (question, left) in enumerate(work):
        report(done, len(work), question.category)
        prompt = question.prompt(template)
        if len(prompt) + options.max_tokens > sides.n_ctx:
            continue
        seeded = [(variant, options.sampling(prompt, repeat)) for variant, repeat in left]
        try:
            turns = sides.answer(seeded, prompt, rates(journal.records, sides.variants))
        except KeyboardInterrupt:
            break  # the page then shows what is known so far
        for (variant, repeat), turn in zip(left, turns, strict=True):
            key = variant.name, question.question_id, question.category, repeat
            journal.add(RunRecord(*key, [turn], setup, exact=variant.margin is None))
    report(len(work), len(work), "done")
    if not journal.records:
        raise MeasureError("no question fits the context", "give more with -c")
    return journal.records


def rates(records: Sequence[RunRecord], variants: Sequence[Variant]) -> dict[str, float]:
    """For each `random` variant, how often the margin rule of its gate has taken an open gate so far; 0.15 at first."""
    out = {}
    for variant in variants:
        if "random" in variant.extras:
            same = (v for v in variants if (v.rule, v.noise) == (variant.rule, variant.noise))
            alike = (v.name for v in same if not v.extras)
            model = next(alike, "")
            turns = [r.turns[0].speculation for r in records if r.who == model]
            relaxed, opened = (sum(int(turn[key]) for turn in turns) for key in ("relaxed", "open"))
            out[variant.name] = (relaxed + 3) / (opened + 20)
    return out
