"""The run: every question answered in every way before the next one.

So drift of the machine and of its clock meets all of them alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from pyspec.errors import PyspecError
from pyspec.measure.disturbed import BOUND, Watch
from pyspec.measure.records import RunLog, RunRecord, TimedAnswer
from pyspec.sampling import Sampling
from pyspec.template import ChatTemplate, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspec.llama import SpeculativeLlama
    from pyspec.measure.modes import Bench, Mode
    from pyspec.measure.questions import Question
    from pyspec.measure.setup import Setup


_ATTEMPTS = 4


@dataclass(frozen=True)
class Options:
    """max_tokens: of one answer; temperature, seed: of the sampler; repeat: runs a question."""

    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 1
    repeat: int = 1
    warm_up: int = 3

    def sampling(self, more: int = 0) -> Sampling:
        """As the engine takes it, with a seed so many further on."""
        return Sampling(temperature=self.temperature, seed=self.seed + more)


class Contender(Protocol):
    """A way of answering: a mode of pyspec, or a peer."""

    name: str
    exact: bool
    peer: bool

    def forget(self) -> None:
        """Empty the KV: the next prompt is read from its first token on."""

    def answer(self, prompt: Sequence[int], max_tokens: int, options: Options) -> TimedAnswer:
        """Answer the tokens of a prompt; what is held of an earlier turn may be reused."""

    def close(self) -> None:
        """Free what this alone holds."""


class Clock:
    """Arrival times of tokens, seen from outside; the same clock for every contender."""

    def __init__(self) -> None:
        self.start = perf_counter()
        self.first = self.last = 0.0

    def tick(self) -> None:
        """Tokens arrived."""
        self.last = perf_counter()
        if not self.first:
            self.first = self.last

    def turn(
        self, prompt: Sequence[int], tokens: list[int], finish: str, **more: Any
    ) -> TimedAnswer:
        """The finished turn."""
        end = self.last or perf_counter()
        first = self.first or end
        total = round(perf_counter() - self.start, 6)
        first_s, decode_s = round(first - self.start, 6), round(end - first, 6)
        return TimedAnswer(len(prompt), tokens, finish, first_s, decode_s, total, **more)


class Ours:
    """One mode of the loaded model."""

    peer = False

    def __init__(self, bench: Bench, mode: Mode, *, exact: bool | None = None) -> None:
        self.bench, self.mode = bench, mode
        self.name = mode.name
        self.exact = mode.exact if exact is None else exact

    def forget(self) -> None:
        """See Contender."""
        self.bench.forget()

    def answer(self, prompt: Sequence[int], max_tokens: int, options: Options) -> TimedAnswer:
        """See Contender."""
        tokens: list[int] = []
        finish = "length"
        llm, asked = self.bench.llm, self.bench.asked(self.mode)
        clock = Clock()
        for step in llm.steps(prompt, options.sampling(), max_tokens=max_tokens, **asked):
            if step.tokens:
                clock.tick()
            tokens += [token.id for token in step.tokens]
            finish = step.finish_reason or finish
        return clock.turn(prompt, tokens, finish, speculation=dict(llm.last_speculation))

    def close(self) -> None:
        """See Contender; the model is the caller's."""


@dataclass
class Runner:
    """Answers questions with every contender and keeps the records.

    finish: called with a finished turn, its question, its number and prompt; may fill the rest.
    report(done, total, what) is called before each run.
    """

    llm: SpeculativeLlama
    contenders: Sequence[Contender]
    options: Options
    setup: Setup
    journal: RunLog
    finish: Callable[[TimedAnswer, Question, int, Sequence[int]], None] | None = None
    report: Callable[[int, int, str], None] = lambda _done, _total, _what: None
    _template: ChatTemplate = field(init=False)

    def __post_init__(self) -> None:
        self._template = ChatTemplate.of(self.llm)

    def run(self, questions: Sequence[Question]) -> list[RunRecord]:
        """Everything that the journal does not have; returns all records of this setup."""
        work = [
            (repeat, question, contender)
            for repeat in range(self.options.repeat)
            for i, question in enumerate(questions)
            # the order turns with the question: nobody always follows the same neighbour
            for contender in _rotated(self.contenders, i + repeat)
            if not self.journal.has(contender.name, question.question_id, repeat)
        ]
        if work:
            self._warm_up(questions, {contender.name for _, _, contender in work})
        for done, (repeat, question, contender) in enumerate(work):
            self.report(done, len(work), f"{question.category}: {contender.name}")
            self.journal.add(self._undisturbed(contender, question, repeat))
        self.report(len(work), len(work), "done")
        return self.journal.records

    def _undisturbed(self, contender: Contender, question: Question, repeat: int) -> RunRecord:
        """The answer, timed again where other programs were busy meanwhile; of some attempts the quietest."""
        found: list[RunRecord] = []
        while len(found) < _ATTEMPTS:
            watch = Watch()
            found.append(self._record(contender, question, repeat))
            found[-1].others = round(watch.others(), 4)
            if found[-1].others <= BOUND:
                break
        return min(found, key=lambda record: record.others)

    def _warm_up(self, questions: Sequence[Question], names: set[str]) -> None:
        """Untimed answers: pages, caches and each policy's first looks at the cost curve."""
        for question in questions[: self.options.warm_up]:
            for contender in self.contenders:
                if contender.name in names:
                    self.report(0, 0, f"warm-up: {contender.name}")
                    contender.forget()
                    prompt = self._prompt([Message(role="user", content=question.turns[0])])
                    contender.answer(prompt, min(24, self.options.max_tokens), self.options)

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        return self._template.prompt(messages)

    def _record(self, contender: Contender, question: Question, repeat: int) -> RunRecord:
        contender.forget()
        record = RunRecord(
            contender.name, question.question_id, question.category, repeat, [], self.setup,
            exact=contender.exact, peer=contender.peer,
        )  # fmt: skip
        messages: list[Message] = []
        for number, text in enumerate(question.turns):
            messages.append(Message(role="user", content=text))
            prompt = self._prompt(messages)
            room = self.llm.n_ctx() - len(prompt)
            try:
                if room < 1:
                    record.error = f"turn {number + 1} does not fit the context"
                    break
                turn = contender.answer(prompt, min(self.options.max_tokens, room), self.options)
            except PyspecError as error:
                record.error = str(error)
                break
            turn.text = self.llm.detokenize(turn.tokens).decode("utf-8", "replace")
            if self.finish is not None:
                self.finish(turn, question, number, prompt)
            record.turns.append(turn)
            messages.append(Message(role="assistant", tokens=turn.tokens))
        return record


def _rotated(contenders: Sequence[Contender], by: int) -> list[Contender]:
    by %= max(1, len(contenders))
    return [*contenders[by:], *contenders[:by]]
