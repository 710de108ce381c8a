"""The whole of `pyspec bench`: run, compare, write the page.

Every question is answered in every mode before the next one, so drift of the machine and of its clock meets all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pyspec.errors import MeasureError, PeerMissing, PyspecError
from pyspec.llama import SpeculativeLlama
from pyspec.measure.equal import demand_equal, equality
from pyspec.measure.modes import BOUND, Mode, Ours, Watch, lacks
from pyspec.measure.peers import Files, InProcess, Server, open_peer
from pyspec.measure.questions import Question
from pyspec.measure.records import Options, RunLog, RunRecord, Setup, describe
from pyspec.measure.report import Results, can_draw, collect, gather, save
from pyspec.store.drafts import MTP
from pyspec.text import ChatTemplate, Message

Contender = Ours | InProcess | Server
"""A mode of pyspec, or a peer: each forgets what it has read, and answers the tokens of a prompt."""


@dataclass
class Task:
    """What is to be compared, and where it is written.

    peer_draft: a draft GGUF for llama-server; None takes the loaded one.
    tie: nats within which rounding may decide; None measures it.
    """

    questions: list[Question]
    modes: list[Mode]
    options: Options
    folder: Path
    peers: list[str] = field(default_factory=list)
    server: Path | None = None
    peer_draft: Path | None = None
    title: str = "Benchmark"
    about: str = ""
    command: str = "pyspec bench"
    tie: float | None = None


def run_bench(
    llm: SpeculativeLlama,
    task: Task,
    report: Callable[[int, int, str], None],
    note: Callable[[str], None],
) -> Results:
    """Run what the journal in `task.folder` lacks, compare, and write page, plots and results.

    note: called with what is skipped, and why. Raises UnequalOutputs before any page is written where
    answers differ that must be equal.
    """
    files = [Path(llm.model_path), *(model.path for model in llm.assembly.models)]
    roles = dict(zip(("target", "draft", "companion"), files))
    setup = describe(llm, roles, task.options, task.questions, llm.n_ctx())
    journal = RunLog(task.folder / "runs.jsonl", setup)
    with ExitStack() as stack:
        contenders, notes = _contenders(llm, task, journal, stack)
        for each in notes:
            note(each)
        Runner(llm, contenders, task.options, setup, journal, report).run(task.questions)
    found, tie = equality(llm, journal.records, task.questions, task.tie)
    demand_equal(found, {r.who for r in journal.records if r.peer}, tie)
    results = collect(
        journal.records, found, tie, tie_measured=task.tie is None, title=task.title,
        about=task.about, command=task.command, notes=notes,
        drawn=gather(journal.records, _curves(llm, contenders)),
    )  # fmt: skip
    if not can_draw():
        note("no plots: matplotlib is not installed (pip install 'pyspec-llama[plot]')")
    save(results, task.folder)
    return results


def _contenders(
    llm: SpeculativeLlama, task: Task, journal: RunLog, stack: ExitStack
) -> tuple[list[Contender], list[str]]:
    out: list[Contender] = []
    notes = []
    exact = task.options.temperature == 0.0
    for mode in task.modes:
        if missing := lacks(llm, mode):
            notes.append(f"{mode.name} is skipped: {missing}")
        else:
            out.append(Ours(llm, mode))
    files = _files(llm, task)
    for name in task.peers:
        if _finished(journal, name, task):
            continue
        try:
            peer = open_peer(name, files, task.server)
        except PeerMissing as error:
            notes.append(str(error))
            continue
        stack.callback(peer.close)
        out.append(peer)
    for one in out:
        one.exact = one.exact and exact
    if not out and not journal.records:
        raise MeasureError("nothing is left to measure", "; ".join(notes))
    return out, notes


def _finished(journal: RunLog, name: str, task: Task) -> bool:
    """Whether a peer has nothing left to do, and need not be loaded."""
    return all(
        journal.has(name, question.question_id, repeat)
        for question in task.questions
        for repeat in range(task.options.repeat)
    )


def _files(llm: SpeculativeLlama, task: Task) -> Files:
    draft = task.peer_draft or _loaded_draft(llm)
    return Files(
        Path(llm.model_path), draft, llm.n_ctx(), int(llm.n_threads),
        int(llm.model_params.n_gpu_layers),
    )  # fmt: skip


def _loaded_draft(llm: SpeculativeLlama) -> Path | None:
    """The loaded draft's file, None for the target's own head."""
    assembly = llm.assembly
    if not assembly.session.loop.draft_model or assembly.draft.rpartition("+")[2] == MTP:
        return None
    return assembly.models[0].path


def _curves(llm: SpeculativeLlama, contenders: Sequence[Contender]) -> dict[str, list[float]]:
    """The cost curve as learned during the run, up to 17 rows."""
    policies = [one.policy for one in contenders if isinstance(one, Ours)] or [llm.new_policy()]
    loop, curve = llm.assembly.session.loop, cast("Any", policies[0]).curve
    wanted = {"target": True, "draft": loop.draft_model, "companion": loop.companion}
    return {name: list(getattr(curve, name).table())[:18] for name in wanted if wanted[name]}


# -- the run -----------------------------------------------------------------------------------------------------------


_ATTEMPTS = 4


@dataclass
class Runner:
    """Answers questions with every contender and keeps the records.

    report(done, total, what) is called before each run.
    """

    llm: SpeculativeLlama
    contenders: Sequence[Contender]
    options: Options
    setup: Setup
    journal: RunLog
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
            for place in range(len(self.contenders))
            for contender in [self.contenders[(place + i + repeat) % len(self.contenders)]]
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
                    prompt = self._template.prompt(
                        [Message(role="user", content=question.turns[0])]
                    )
                    contender.answer(prompt, min(24, self.options.max_tokens), self.options)

    def _record(self, contender: Contender, question: Question, repeat: int) -> RunRecord:
        contender.forget()
        record = RunRecord(
            contender.name, question.question_id, question.category, repeat, [], self.setup,
            exact=contender.exact, peer=contender.peer,
        )  # fmt: skip
        messages: list[Message] = []
        for number, text in enumerate(question.turns):
            messages.append(Message(role="user", content=text))
            prompt = self._template.prompt(messages)
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
            record.turns.append(turn)
            messages.append(Message(role="assistant", tokens=turn.tokens))
        return record
