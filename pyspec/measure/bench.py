"""The whole of `pyspec bench`: run, compare, write the page.

Every question is answered in every mode before the next one, so drift of the machine and of its clock meets all alike.

At temperature 0 a strict mode gives the tokens that plain decoding gives. llama.cpp's kernels do not round alike for one row and
for several (a Q4_1 file's logits move by 0.1 nats and more), so where the target's two best tokens are nearer than that the
answers may part, and then go apart; any other difference is a fault. How near is measured: `tie_bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from pyspec.errors import MeasureError, PeerMissing, PyspecError, UnequalOutputs
from pyspec.llama import SpeculativeLlama
from pyspec.measure.contenders import Contender, Files, Ours, lacks, open_peer
from pyspec.measure.costs import rows_after
from pyspec.measure.records import BOUND, Difference, RunLog, RunRecord, describe
from pyspec.measure.report import Results, can_draw, collect, gather, save
from pyspec.measure.tasks import Options, Question, Report, Task
from pyspec.store.heads import MTP
from pyspec.store.watch import Watch
from pyspec.text.template import ChatTemplate
from pyspec.tokens import common_prefix


def run_bench(
    llm: SpeculativeLlama, task: Task, report: Report, note: Callable[[str], None]
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
        Runner(llm, contenders, task.options, journal, report).run(task.questions)
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
        out.append(peer)
    for one in out:
        one.exact = one.exact and task.options.temperature == 0.0
    if not out and not journal.records:
        raise MeasureError("nothing is left to measure", "; ".join(notes))
    return out, notes


def _loaded_draft(llm: SpeculativeLlama) -> Path | None:
    """The loaded draft's file, None for the target's own head."""
    assembly = llm.assembly
    if not assembly.loop.draft_model or assembly.draft.rpartition("+")[2] == MTP:
        return None
    return assembly.models[0].path


def _curves(llm: SpeculativeLlama, contenders: Sequence[Contender]) -> dict[str, list[float]]:
    """The cost curve as learned during the run, up to 17 rows."""
    policies = [one.policy for one in contenders if isinstance(one, Ours)] or [llm.new_policy()]
    loop, curve = llm.assembly.loop, cast("Any", policies[0]).curve
    wanted = {"target": True, "draft": loop.draft_model, "companion": loop.companion}
    return {name: list(getattr(curve, name).table())[:18] for name in wanted if wanted[name]}


# -- the run -----------------------------------------------------------------------------------------------------------


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
        while len(found) < _ATTEMPTS and (not found or found[-1].others > BOUND):
            watch = Watch()
            found.append(self._record(contender, question, repeat))
            found[-1].others = round(watch.others(), 4)
        return min(found, key=lambda record: record.others)

    def _warm_up(self, questions: Sequence[Question], names: set[str]) -> None:
        """Untimed answers: pages, caches and each policy's first looks at the cost curve."""
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


# -- answers that must be equal ------------------------------------------------------------------------------------------


TIE = 0.05
"""Nats between the two best tokens below which rounding may decide, at the least."""

_WIDTHS = (2, 4, 8)
# Tokens that the bound is measured on, and of one answer so many at most: behind the longest texts, since attention splits
# those by the rows of a batch, where kernels may be exact for any number of rows (Q8_0: no move at 100 tokens, 0.4 nats at 800).
_SAMPLE = 288
_TOKENS = 96
_ROOM = 2.0  # times the greatest move seen: moves have heavy tails


def differences(records: Sequence[RunRecord]) -> list[Difference]:
    """The first difference of each exact answer from plain decoding's of the same run.

    A shorter answer is a difference at its end. Later turns after a difference have another
    prompt and are not looked at.
    """
    plain = _plain(records)
    out = []
    for record in records:
        base = plain.get((record.question_id, record.repeat))
        if not record.exact or base is None or record is base or record.error:
            continue
        for number, (one, two) in enumerate(zip(base.turns, record.turns, strict=False)):
            place = common_prefix(one.tokens, two.tokens)
            if place < max(len(one.tokens), len(two.tokens)):
                a, b = (next(iter(t.tokens[place:]), None) for t in (one, two))
                where = record.question_id, number, place
                out.append(Difference(record.who, *where, a, b, repeat=record.repeat))
                break
    return out


def demand_equal(found: Sequence[Difference], peers: set[str], tie: float = TIE) -> None:
    """Raise UnequalOutputs for the first difference of pyspec's own that is no near-tie.

    Peers are other programs, with kernels of their own: theirs are reported, not refused.
    """
    for difference in found:
        if difference.who not in peers and (difference.gap is None or difference.gap > tie):
            hint = f"near-ties up to {tie:.2f} nats are allowed; this is a fault in pyspec"
            raise UnequalOutputs(str(difference), hint)


def tie_bound(
    llm: SpeculativeLlama, answers: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> float:
    """Nats within which the two best tokens may change places by rounding alone.

    Twice the greatest move of z1 - z2 between decodes of one row and of 2, 4 or 8, over the tokens of the first answers; at least
    `TIE`. Each answer is decoded as a whole in either way: what the KV holds was rounded otherwise too, and that adds up.

    answers: (prompt, answer) each.
    """
    most, seen = 0.0, 0
    for prompt, answer in answers:
        if seen >= _SAMPLE:
            break
        part = answer[:_TOKENS]
        seen += len(part)
        alone = [row.copy() for row in rows_after(llm, prompt, part, 1)]
        for width in _WIDTHS:
            for one, row in zip(alone, rows_after(llm, prompt, part, width), strict=True):
                second, first = np.argpartition(one, -2)[-2:]
                moved = row - one
                most = max(most, abs(float(moved[first] - moved[second])))
    return max(TIE, _ROOM * most)


def top_gap(row: npt.NDArray[np.float32]) -> float:
    """z1 - z2 of a row of logits, in nats."""
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)


def equality(
    llm: SpeculativeLlama,
    records: Sequence[RunRecord],
    questions: Sequence[Question],
    tie: float | None = None,
) -> tuple[list[Difference], float]:
    """First differences from plain decoding's, with the target's gap at each, and the bound."""
    plain, template = _plain(records), ChatTemplate.of(llm)
    asked = {question.question_id: question for question in questions}
    if not plain:
        return [], 0.0

    def prompt(record: RunRecord, number: int) -> list[int]:
        answers = [turn.tokens for turn in record.turns[:number]]
        return asked[record.question_id].prompt(template, answers)

    if tie is None:
        texts = [(prompt(r, i), t.tokens) for r in plain.values() for i, t in enumerate(r.turns)]
        tie = tie_bound(llm, sorted(texts, key=lambda text: -len(text[0]) - len(text[1])))
    found = []
    for one in differences(records):
        base = plain[one.question_id, one.repeat]
        text = [*prompt(base, one.turn), *base.turns[one.turn].tokens[: one.place]]
        row = next(rows_after(llm, text, [0]))
        found.append(msgspec.structs.replace(one, gap=top_gap(row)))
    return found, tie


def _plain(records: Sequence[RunRecord]) -> dict[tuple[int | str, int], RunRecord]:
    """Plain decoding's answers, by question and repeat."""
    plain = [r for r in records if r.who == "plain" and not r.error and r.turns]
    return {(r.question_id, r.repeat): r for r in plain}
