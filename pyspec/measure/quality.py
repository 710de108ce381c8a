"""What a rule costs: the same questions answered by many variants side by side, against a control.

The first variant is the control; in the default list it is strict verification with drafts forced, so that what
rounding alone changes is in it, too. Nats are of the emitted tokens under the target, at the rows they were chosen from.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspec.drafters.lookup import SuffixIndex
from pyspec.errors import MeasureError, PyspecError
from pyspec.measure.bench import questions_name
from pyspec.measure.questions import check
from pyspec.measure.records import RunLog, RunRecord, Setup, TimedAnswer, setup_of
from pyspec.measure.stats import detectable, exact_pairs, paired, signed_ranks
from pyspec.template import ChatTemplate, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspec.measure.modes import Options
    from pyspec.measure.questions import Question
    from pyspec.measure.variants import SideBySide, Variant

VARIANTS = (
    "strict+fixed:4,plain,strict+fixed:1,plain+temp:0.3,margin+fixed:4,margin/gap=inf+fixed:4,margin+random,"
    "margin+thin+fixed:4,margin/lookup=0+fixed:4,margin+model+fixed:4"
)
"""What `pyspec quality` compares unless told otherwise."""

LOOPED = 0.5
"""An answer whose share of different 4-grams is below this runs in circles."""

NATS_BOUND, LEVEL = 0.02, 0.05


class Interval(msgspec.Struct):
    """Mean difference from the control over questions, its 95 % bootstrap interval, and what could have been seen.

    seen: the difference that a sample of this size shows four times of five at the 5 % level.
    """

    mean: float
    low: float
    high: float
    seen: float


class Figures(msgspec.Struct):
    """One variant's figures; `_over` fields are differences from the control.

    length: tokens a verify of the target brought; gain: times the control's, on the same answers; relaxed: share of
    tokens; open: share of places where the gate was open; looped: answers that run in circles; looped_p: exact paired
    test against the control; distinct_p: signed ranks. rouge: ROUGE-L against the questions' references, None without
    any. checks: by kind, passed and asked. worse: what is worse beyond chance or a bound.
    """

    who: str
    answers: int
    tokens: float
    length: float
    gain: float
    relaxed: float
    open: float
    nats: float
    nats_over: Interval
    looped: int
    looped_p: float
    distinct: float
    distinct_over: Interval
    distinct_p: float
    repeat: float
    endings: dict[str, int]
    rouge: float | None
    rouge_over: Interval | None
    checks: dict[str, tuple[int, int]]
    checks_over: dict[str, Interval]
    worse: list[str] = []


class QualityResults(msgspec.Struct):
    """Everything the quality page says, as `quality.json` next to it."""

    title: str
    command: str
    setup: Setup
    figures: list[Figures]
    verdict: str


def distinct_4(tokens: Sequence[int]) -> float:
    """Share of 4-grams that are different ones; 1 where there are none."""
    grams = list(zip(*(tokens[i:] for i in range(4)), strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


def longest_repeat(tokens: Sequence[int]) -> int:
    """Length of the longest run of tokens that stands in the answer twice."""
    index, longest = SuffixIndex(), 0
    for token in tokens:
        index.extend(token)
        longest = max(longest, index.match[0])
    return longest


def answer_all(
    sides: SideBySide,
    questions: Sequence[Question],
    options: Options,
    folder: Path,
    report: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> list[RunRecord]:
    """Every question's first turn by every variant due, `options.repeat` seeds; what `folder` has is not answered again.

    A question that does not fit the context is left out; Ctrl-C ends with what there is. Raises ResumeMismatch.
    """
    setup = _setup(sides, questions, options)
    journal = RunLog(folder / "runs.jsonl", setup)
    template = ChatTemplate.of(sides.target)
    work = [
        (repeat, question, variants)
        for repeat in range(options.repeat)
        for i, question in enumerate(questions)
        if (variants := _due(journal, sides.variants, i, question, repeat))
    ]
    for done, (repeat, question, variants) in enumerate(work):
        report(done, len(work), question.category)
        prompt = template.prompt([Message(role="user", content=question.turns[0])])
        if len(prompt) + options.max_tokens > sides.n_ctx:
            continue
        try:
            turns = sides.answer(
                variants, prompt, options.sampling(repeat), rates(journal.records, sides.variants)
            )
        except KeyboardInterrupt:
            break  # the page then says what is known so far
        for record in _records(variants, question, repeat, setup, turns):
            journal.add(record)
    report(len(work), len(work), "done")
    if not journal.records:
        raise MeasureError("no question fits the context", "give more with -c")
    return journal.records


def _due(
    journal: RunLog, variants: Sequence[Variant], i: int, question: Question, repeat: int
) -> list[Variant]:
    """The variants that still have to answer the i-th question."""
    asked = [variant for variant in variants if variant.first is None or i < variant.first]
    return [
        variant for variant in asked if not journal.has(variant.name, question.question_id, repeat)
    ]


def _records(
    variants: Sequence[Variant],
    question: Question,
    repeat: int,
    setup: Setup,
    turns: Sequence[TimedAnswer],
) -> Iterator[RunRecord]:
    what = question.check_of(0)
    for variant, turn in zip(variants, turns, strict=True):
        try:
            turn.check = check(what, turn.text) if what is not None else None
        except PyspecError as error:
            raise MeasureError(f"question {question.question_id}: {error}") from error
        yield RunRecord(variant.name, question.question_id, question.category, repeat, [turn], setup,
                     exact=variant.margin is None)  # fmt: skip


def _setup(sides: SideBySide, questions: Sequence[Question], options: Options) -> Setup:
    return setup_of(
        sides.models.files, threads=int(sides.target.n_threads), n_ctx=sides.n_ctx,
        max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed,
        questions=questions_name(questions),
    )  # fmt: skip


def rates(records: Sequence[RunRecord], variants: Sequence[Variant]) -> dict[str, float]:
    """For each `random` variant, how often the margin rule of its gate has taken an open gate so far; 0.15 at first."""
    out = {}
    for variant in variants:
        if "random" in variant.extras:
            model = next(
                (w for w in variants if w.mode.rule == variant.mode.rule and not w.extras), None
            )
            turns = [r.turns[0] for r in records if model is not None and r.who == model.name]
            relaxed = sum(int(t.speculation["relaxed"]) for t in turns)
            out[variant.name] = (relaxed + 3) / (
                sum(int(t.speculation["open"]) for t in turns) + 20
            )
    return out


def judge(records: Sequence[RunRecord], questions: Sequence[Question]) -> list[Figures]:
    """Figures of every variant in the records, in their order; the first one is the control."""
    kinds = {q.question_id: (q.check_of(0) or {}).get("kind", "") for q in questions}
    by_who: dict[str, list[RunRecord]] = {}
    for record in records:
        by_who.setdefault(record.who, []).append(record)
    control = next(iter(by_who.values()))
    references = {q.question_id: q.reference[0] for q in questions if q.reference}
    told = {q: text for q, text in references.items() if isinstance(text, str) and text}
    return [_figures(group, control, kinds, told) for group in by_who.values()]


def _figures(
    group: Sequence[RunRecord],
    control: Sequence[RunRecord],
    kinds: dict[int | str, str],
    references: dict[int | str, str],
) -> Figures:
    turns = [record.turns[0] for record in group]
    tokens = sum(len(turn.tokens) for turn in turns)
    nats, distinct = _each(group, _nats), _each(group, _distinct)
    base = _each(control, _distinct)
    loops, base_loops = _looped(group), _looped(control)
    both = [key for key in loops if key in base_loops]
    checks, rouge = _checks(group, kinds), _rouge(group, references)
    found = Figures(
        who=group[0].who,
        answers=len(turns),
        tokens=tokens / len(turns),
        length=_length(group),
        gain=_length([r for r in group if _answer(r) in base_loops])
        / _length([r for r in control if _answer(r) in loops]),
        relaxed=sum(int(t.speculation["relaxed"]) for t in turns) / max(1, tokens),
        open=sum(int(t.speculation["open"]) for t in turns) / max(1, tokens),
        nats=_mean(list(nats.values())),
        nats_over=_over(nats, _each(control, _nats)),
        looped=sum(loops.values()),
        looped_p=exact_pairs([(loops[key], base_loops[key]) for key in both]),
        distinct=_mean(list(distinct.values())),
        distinct_over=_over(distinct, base),
        distinct_p=signed_ranks([distinct[q] - base[q] for q in distinct if q in base]),
        repeat=_mean([float(longest_repeat(turn.tokens)) for turn in turns]),
        endings=dict(Counter(turn.finish for turn in turns)),
        rouge=_mean(list(rouge.values())) if rouge else None,
        rouge_over=_over(rouge, _rouge(control, references)) if rouge else None,
        checks={kind: _passed(group, kinds, kind) for kind in checks},
        checks_over={
            kind: _over(own, _checks(control, kinds).get(kind, {})) for kind, own in checks.items()
        },
    )
    found.worse = list(_worse(found, sum(base_loops[key] for key in both)))
    return found


def _rouge(group: Sequence[RunRecord], references: dict[int | str, str]) -> dict[int | str, float]:
    """ROUGE-L (F1) of each answer whose question has a reference; none where `rouge-score` is not installed."""
    if not references or importlib.util.find_spec("rouge_score") is None:
        return {}
    from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415 - optional

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    told = [record for record in group if record.question_id in references]
    return _each(
        told,
        lambda r: float(
            scorer.score(references[r.question_id], r.turns[0].text)["rougeL"].fmeasure
        ),
    )


def _worse(found: Figures, base_looped: int) -> Iterator[str]:
    """What is worse than the control beyond chance: looped answers, repetition, nats over the bound, references, checks."""
    if found.looped > base_looped and found.looped_p < LEVEL:
        yield "looped"
    if found.distinct_over.mean < 0.0 and found.distinct_p < LEVEL:
        yield "distinct-4"
    if found.nats_over.low > NATS_BOUND:
        yield "nats"
    if found.rouge_over is not None and found.rouge_over.high < 0.0:
        yield "rouge"
    yield from (kind for kind, interval in found.checks_over.items() if interval.high < 0.0)


def _length(group: Sequence[RunRecord]) -> float:
    tokens = sum(len(record.turns[0].tokens) for record in group)
    return tokens / max(1, sum(int(r.turns[0].speculation["rounds"]) for r in group))


def _answer(record: RunRecord) -> tuple[int | str, int]:
    return record.question_id, record.repeat


def _nats(record: RunRecord) -> float:
    return _mean(record.turns[0].nats)


def _distinct(record: RunRecord) -> float:
    return distinct_4(record.turns[0].tokens)


def _looped(group: Sequence[RunRecord]) -> dict[tuple[int | str, int], bool]:
    return {_answer(r): _distinct(r) < LOOPED for r in group}


def _each(
    group: Sequence[RunRecord], figure: Callable[[RunRecord], float]
) -> dict[int | str, float]:
    """One figure a question, the mean over seeds."""
    values: dict[int | str, list[float]] = {}
    for record in group:
        values.setdefault(record.question_id, []).append(figure(record))
    return {question: _mean(found) for question, found in values.items()}


def _checks(
    group: Sequence[RunRecord], kinds: dict[int | str, str]
) -> dict[str, dict[int | str, float]]:
    """By kind of check, the share of each question's answers that passed."""
    names = sorted({kinds.get(r.question_id, "") for r in group} - {""})
    return {
        kind: _each([r for r in group if kinds[r.question_id] == kind], _check) for kind in names
    }


def _check(record: RunRecord) -> float:
    return float(bool(record.turns[0].check))


def _passed(group: Sequence[RunRecord], kinds: dict[int | str, str], kind: str) -> tuple[int, int]:
    results = [bool(r.turns[0].check) for r in group if kinds.get(r.question_id) == kind]
    return sum(results), len(results)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _over(own: dict[int | str, float], base: dict[int | str, float]) -> Interval:
    differences = [own[q] - base[q] for q in own if q in base]
    return Interval(*paired(own, base), detectable(differences))


def verdict(found: Sequence[Figures], variants: Sequence[Variant]) -> str:
    """Which rule the data support, in two sentences: the one that brings most of those that are not worse.

    A rule that answered fewer questions than the control is not a candidate.
    """
    control = found[0]
    margins = {v.name for v in variants if v.margin is not None and "random" not in v.extras}
    rules = [f for f in found if f.who in margins and f.answers >= control.answers]
    fine = [f for f in rules if not f.worse]
    if not rules:
        return "No margin rule was measured."
    if not fine:
        return (
            f"Every margin rule is worse than {control.who} in something; the data support strict."
        )
    best = max(fine, key=lambda f: f.gain)
    text = (
        f"Of the margin rules that are in nothing worse than {control.who} as far as {best.answers} answers can "
        f"show, {best.who} brings most: {best.length:.2f} tokens a verify, {100 * (best.gain - 1):+.0f} %."
    )
    bad = [f"{f.who} ({', '.join(f.worse)})" for f in rules if f.worse]
    return text + (f" Worse are {', '.join(bad)}." if bad else "")
