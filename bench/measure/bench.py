"""All of `bench/compare.py`: run, compare, write the page.

Every question is answered in every mode before the next one, so drift of the machine and its clock affects all alike.

A strict mode gives the same tokens as plain decoding, up to rounding, also above temperature 0: see `equal.py`. Other programs
draw their own random numbers, so they are compared at temperature 0 only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from pyspec.errors import PyspecError
from pyspec.gguf.kinds import MTP
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.machine.machine import Watch
from pyspec.text.template import ChatTemplate

from .contenders import Contender, Files, Ours, lacks, open_peer
from .equal import demand_equal, equality
from .questions import Question, Report
from .records import BOUND, RunLog, RunRecord, describe
from .report import Results, can_draw, collect, gather, save_page
from .tasks import MeasureError, Options, PeerMissing, Task


def run_bench(
    llm: SpeculativeLlama, task: Task, report: Report, note: Callable[[str], None]
) -> Results:
    """Run what the journal in `task.folder` lacks, compare, and write page, plots and results.

    note: called with what is skipped, and why. If answers that must be equal differ, raises UnequalOutputs before any page is
    written.
    """
    files = [Path(llm.model_path), *(model.path for model in llm.assembly.models)]
    roles = dict(zip(("target", "draft", "companion"), files))
    setup = describe(llm, roles, task.options, task.questions, llm.n_ctx(), task.engine)
    journal = RunLog(task.folder / "runs.jsonl", setup)
    with ExitStack() as stack:
        contenders, notes = _contenders(llm, task, journal, stack)
        for each in notes:
            note(each)
        Runner(llm, contenders, task.options, journal, report).run(task.questions)
    found = equality(llm, journal.records, task.questions)
    demand_equal(found, {r.who for r in journal.records if r.peer})
    results = collect(
        journal.records, found, title=task.title, about=task.about, command=task.command, notes=notes,
        drawn=gather(journal.records, _curves(llm)),
    )  # fmt: skip
    if not can_draw():
        note("no plots: matplotlib is not installed (pip install matplotlib)")
    save_page(results, task.folder)
    return results


def _contenders(
    llm: SpeculativeLlama, task: Task, journal: RunLog, stack: ExitStack
) -> tuple[list[Contender], list[str]]:
    out: list[Contender] = []
    notes = []
    for mode in task.modes:
        if missing := lacks(llm, mode):
            notes.append(f"{mode.name} is skipped: {missing}")
        else:
            out.append(Ours(llm, mode, task.options.temperature))
    files = Files(
        Path(llm.model_path), task.peer_draft or _loaded_draft(llm), llm.n_ctx(),
        int(llm.n_threads), int(llm.model_params.n_gpu_layers),
    )  # fmt: skip
    for name in task.peers:
        runs = product(task.questions, range(task.options.repeat))
        if all(journal.has(name, question.question_id, repeat) for question, repeat in runs):
            continue  # it need not be loaded
        try:
            peer = open_peer(name, files, task.server)
        except PeerMissing as error:
            notes.append(str(error))
            continue
        stack.callback(peer.close)
        peer.exact = peer.exact and task.options.temperature == 0.0
        out.append(peer)
    if not out and not journal.records:
        raise MeasureError("nothing is left to measure", "; ".join(notes))
    return out, notes


def _loaded_draft(llm: SpeculativeLlama) -> Path | None:
    """The loaded draft's file; None for the target's own head."""
    assembly = llm.assembly
    if not assembly.loop.draft_model or assembly.parts.names[0].rpartition("+")[2] == MTP:
        return None
    return assembly.models[0].path


def _curves(llm: SpeculativeLlama) -> dict[str, list[float]]:
    """The cost curves as learned during the run, up to 17 rows."""
    loop, curve = llm.assembly.loop, llm.policies.curve
    wanted = {"target": True, "draft": loop.draft_model, "companion": loop.companion}
    return {name: list(getattr(curve, name).table())[:18] for name in wanted if wanted[name]}


_ATTEMPTS = 4


@dataclass
class Runner:
    """Answers questions with every contender and keeps the records."""

    llm: SpeculativeLlama
    contenders: Sequence[Contender]
    options: Options
    journal: RunLog
    report: Report = lambda *_: None
    _template: ChatTemplate = field(init=False)

    def __post_init__(self) -> None:
        self._template = ChatTemplate.of(self.llm)

    def run(self, questions: Sequence[Question]) -> list[RunRecord]:
        """Make all runs that the journal does not have; returns all records of this setup."""
        work = [
            (repeat, question, contender)
            for repeat in range(self.options.repeat)
            for i, question in enumerate(questions)
            # rotate the order with each question, so nobody always follows the same neighbour
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
        """Answer, and time again if other programs were busy meanwhile; returns the quietest of several attempts."""
        found: list[RunRecord] = []
        while len(found) < _ATTEMPTS and (not found or found[-1].others > BOUND):
            watch = Watch()
            found.append(self._record(contender, question, repeat))
            found[-1].others = round(watch.others(), 4)
        return min(found, key=lambda record: record.others)

    def _warm_up(self, questions: Sequence[Question], names: set[str]) -> None:
        """Give untimed answers, which warm pages and caches and let each policy see the cost curve."""
        for question in questions[: self.options.warm_up]:
            for contender in self.contenders:
                if contender.name in names:
                    self.report(0, 0, f"warm-up: {contender.name}")
                    contender.forget()
                    few = min(24, self.options.max_tokens)
                    contender.answer(question.prompt(self._template), few, self.options)

    def _record(self, contender: Contender, question: Question, repeat: int) -> RunRecord:
        contender.forget()
        record = RunRecord(
            contender.name, question.question_id, question.category, repeat, [],
            self.journal.setup, exact=contender.exact, peer=contender.peer,
        )  # fmt: skip
        for number in range(len(question.turns)):
            prompt = question.prompt(self._template, [turn.tokens for turn in record.turns])
            room = self.llm.n_ctx() - len(prompt)
            try:
                if room < 1:
                    raise MeasureError(f"turn {number + 1} does not fit the context")
                turn = contender.answer(prompt, min(self.options.max_tokens, room), self.options)
            except PyspecError as error:
                record.error = str(error)
                break
            turn.text = self.llm.detokenize(turn.tokens).decode("utf-8", "replace")
            record.turns.append(turn)
        return record
