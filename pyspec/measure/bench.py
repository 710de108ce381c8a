"""The whole of `pyspec bench`: run, compare, write the page.

Every question is answered in every mode before the next one, so drift of the machine and of its clock meets all alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspec.engine.assembly import Assembly
from pyspec.errors import MeasureError, PeerMissing, PyspecError
from pyspec.llama import SpeculativeLlama
from pyspec.measure import plots
from pyspec.measure.equal import demand_equal, equality
from pyspec.measure.modes import Bench, Contender, Mode, Options, Ours
from pyspec.measure.peers import Files, open_peer
from pyspec.measure.questions import Question
from pyspec.measure.records import RunLog, RunRecord, Setup, describe
from pyspec.measure.report import Results, collect, save
from pyspec.measure.usage import BOUND, Watch, peak_mib
from pyspec.store.drafts import MTP
from pyspec.template import ChatTemplate, Message


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
    memory: bool = False
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
    bench, how = Bench(llm), task.options
    setup = describe(
        llm, max_tokens=how.max_tokens, temperature=how.temperature, seed=how.seed,
        questions=questions_name(task.questions),
    )  # fmt: skip
    journal = RunLog(task.folder / "runs.jsonl", setup)
    with ExitStack() as stack:
        contenders, notes = _contenders(bench, task, journal, stack)
        for each in notes:
            note(each)
        Runner(llm, contenders, how, setup, journal, report).run(task.questions)
    found, tie = equality(llm, journal.records, task.questions, task.tie)
    demand_equal(found, {r.who for r in journal.records if r.peer}, tie)
    memory = _memory(llm, task, note) if task.memory else {}
    results = collect(
        journal.records, found, tie, tie_measured=task.tie is None, title=task.title,
        about=task.about, command=task.command, notes=notes, memory=memory,
        drawn=plots.gather(journal.records, curves(bench)),
    )  # fmt: skip
    if not plots.available():
        note("no plots: matplotlib is not installed (pip install 'pyspec-llama[plot]')")
    save(results, task.folder)
    return results


def questions_name(questions: Sequence[Question]) -> str:
    """How many questions, and a hash of their texts."""
    text = json.dumps([[q.question_id, q.turns] for q in questions])
    return f"{len(questions)} questions, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _contenders(
    bench: Bench, task: Task, journal: RunLog, stack: ExitStack
) -> tuple[list[Contender], list[str]]:
    out: list[Contender] = []
    notes = []
    exact = task.options.temperature == 0.0
    for mode in task.modes:
        lacks = bench.lacks(mode)
        if lacks:
            notes.append(f"{mode.name} is skipped: {lacks}")
        else:
            out.append(Ours(bench, mode, exact=mode.exact and exact))
    files = _files(bench.llm, task)
    for name in task.peers:
        if _finished(journal, name, task):
            continue
        try:
            peer = open_peer(name, files, task.server)
        except PeerMissing as error:
            notes.append(str(error))
            continue
        stack.callback(peer.close)
        peer.exact = exact
        out.append(peer)
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


def _is_head(assembly: Assembly) -> bool:
    return assembly.draft.rpartition("+")[2] == MTP


def _loaded_draft(llm: SpeculativeLlama) -> Path | None:
    """The loaded draft's file, None for the target's own head."""
    assembly = llm.assembly
    if not assembly.session.loop.draft_model or _is_head(assembly):
        return None
    return assembly.models[0].path


def curves(bench: Bench) -> dict[str, list[float]]:
    """The cost curve as learned during the run, up to 17 rows."""
    loop = bench.llm.assembly.session.loop
    curve = bench.curve
    out = {"target": list(curve.target.table())[:18]}
    if loop.draft_model:
        out["draft"] = list(curve.draft.table())[:18]
    if loop.companion:
        out["companion"] = list(curve.companion.table())[:18]
    return out


def _memory(llm: SpeculativeLlama, task: Task, note: Callable[[str], None]) -> dict[str, float]:
    """Peak memory of what was compared, a process each."""
    common: dict[str, Any] = {
        "target": llm.model_path, "n_ctx": llm.n_ctx(), "n_threads": int(llm.n_threads),
        "n_gpu_layers": int(llm.model_params.n_gpu_layers),
    }  # fmt: skip
    assembly = llm.assembly
    paths = [str(m.path) for m in assembly.models]
    if _is_head(assembly):
        paths[0] = MTP
    loaded = {"draft": paths[0] if paths else "lookup", "companion": (paths[1:] or ["none"])[0]}
    wanted = {
        "pyspec --draft none": {"kind": "pyspec", "draft": "none"},
        "pyspec --draft lookup": {"kind": "pyspec", "draft": "lookup"},
        f"pyspec {assembly.draft}, companion {assembly.companion}": {"kind": "pyspec", **loaded},
    }
    wanted.update({name: {"kind": name} for name in task.peers if name.startswith("llama_cpp")})
    out = {}
    for name, configuration in wanted.items():
        try:  # one that fails does not take the others along
            out[name] = peak_mib({**common, **configuration})
        except MeasureError as error:
            note(f"memory of {name}: {error}")
    return out


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
            record.turns.append(turn)
            messages.append(Message(role="assistant", tokens=turn.tokens))
        return record


def _rotated(contenders: Sequence[Contender], by: int) -> list[Contender]:
    by %= max(1, len(contenders))
    return [*contenders[by:], *contenders[:by]]
