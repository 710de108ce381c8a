"""What a rule costs: the same questions answered by many variants side by side, against a control.

The first variant is the control; in the default list it is strict verification with drafts forced, so that what
rounding alone changes is in it, too. Nats are of the emitted tokens under the target, at the rows they were chosen from.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.errors import MeasureError, PyspecError
from pyspec.measure.bench import questions_name
from pyspec.measure.questions import check
from pyspec.measure.records import RunLog, RunRecord, Setup, TimedAnswer, describe
from pyspec.measure.stats import Interval, exact_pairs, paired, signed_ranks
from pyspec.template import ChatTemplate, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

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

NATS, DISTINCT, LOOPS, VARIETY, ROUGE = "nats", "distinct-4", "looped", "variety", "ROUGE-L"
NATS_BOUND, LEVEL = 0.02, 0.05


class Measure(msgspec.Struct):
    """One figure of answers: its mean over questions, how many have it, and its difference from the control."""

    mean: float
    questions: int
    over: Interval


class Figures(msgspec.Struct):
    """One variant's figures.

    length: tokens a verify of the target brought; gain: times the control's, on the same answers; relaxed: share of
    tokens; open: share of places where the gate was open; looped: answers that run in circles; looped_p: exact paired
    test against the control; distinct_p: signed ranks. measures: nats, distinct-4 and the looped share, variety where there
    are several seeds, ROUGE-L where questions have references and `rouge-score` is installed, and by kind of check the
    share that passed. worse: what is worse beyond chance or a bound.
    """

    who: str
    answers: int
    length: float
    gain: float
    relaxed: float
    open: float
    looped: int
    looped_p: float
    distinct_p: float
    measures: dict[str, Measure]
    worse: list[str] = []


class QualityResults(msgspec.Struct):
    """Everything the quality page says, as `quality.json` next to it."""

    title: str
    command: str
    setup: Setup
    figures: list[Figures]
    verdict: str


# -- answers -----------------------------------------------------------------------------------------------------------


def answer_all(
    sides: SideBySide,
    questions: Sequence[Question],
    options: Options,
    folder: Path,
    report: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> list[RunRecord]:
    """Every question's first turn by every variant due and `options.repeat` seeds side by side; what `folder` has stays.

    A question that does not fit the context is left out; Ctrl-C ends with what there is. Raises ResumeMismatch.
    """
    setup = describe(
        sides.target, sides.models.files, n_ctx=sides.n_ctx, max_tokens=options.max_tokens,
        temperature=options.temperature, seed=options.seed, questions=questions_name(questions),
    )  # fmt: skip
    journal = RunLog(folder / "runs.jsonl", setup)
    template = ChatTemplate.of(sides.target)
    work = [
        (question, due)
        for i, question in enumerate(questions)
        if (
            due := [
                (variant, repeat)
                for repeat in range(options.repeat)
                for variant in sides.variants
                if (variant.first is None or i < variant.first)
                and not journal.has(variant.name, question.question_id, repeat)
            ]
        )
    ]
    for done, (question, due) in enumerate(work):
        report(done, len(work), question.category)
        prompt = template.prompt([Message(role="user", content=question.turns[0])])
        if len(prompt) + options.max_tokens > sides.n_ctx:
            continue
        try:
            turns = sides.answer(
                [(variant, options.sampling(repeat)) for variant, repeat in due],
                prompt,
                rates(journal.records, sides.variants),
            )
        except KeyboardInterrupt:
            break  # the page then says what is known so far
        for record in _records(due, question, setup, turns):
            journal.add(record)
    report(len(work), len(work), "done")
    if not journal.records:
        raise MeasureError("no question fits the context", "give more with -c")
    return journal.records


def _records(
    due: Sequence[tuple[Variant, int]],
    question: Question,
    setup: Setup,
    turns: Sequence[TimedAnswer],
) -> Iterator[RunRecord]:
    what = question.check_of(0)
    for (variant, repeat), turn in zip(due, turns, strict=True):
        try:
            turn.check = check(what, turn.text) if what is not None else None
        except PyspecError as error:
            raise MeasureError(f"question {question.question_id}: {error}") from error
        yield RunRecord(variant.name, question.question_id, question.category, repeat, [turn], setup,
                     exact=variant.margin is None)  # fmt: skip


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


# -- figures -----------------------------------------------------------------------------------------------------------


_Values = dict["int | str", float]
"""One figure a question, the mean over seeds."""


def judge(records: Sequence[RunRecord], questions: Sequence[Question]) -> list[Figures]:
    """Figures of every variant in the records, in their order; the first one is the control."""
    asked = {q.question_id: q for q in questions}
    scorer = _scorer() if any(q.reference for q in questions) else None
    by_who: dict[str, list[RunRecord]] = {}
    for record in records:
        by_who.setdefault(record.who, []).append(record)
    values = {who: _values(group, asked, scorer) for who, group in by_who.items()}
    control = next(iter(by_who.values()))
    return [
        _figures(group, control, values[who], values[control[0].who])
        for who, group in by_who.items()
    ]


def _figures(
    group: Sequence[RunRecord],
    control: Sequence[RunRecord],
    own: dict[str, _Values],
    base: dict[str, _Values],
) -> Figures:
    tokens = max(1, sum(len(record.turns[0].tokens) for record in group))
    loops, base_loops = _looped(group), _looped(control)
    both = [key for key in loops if key in base_loops]
    distinct = {
        q: value - base[DISTINCT][q] for q, value in own[DISTINCT].items() if q in base[DISTINCT]
    }
    found = Figures(
        who=group[0].who,
        answers=len(group),
        length=_length(group),
        gain=_length([r for r in group if _answer(r) in base_loops])
        / _length([r for r in control if _answer(r) in loops]),
        relaxed=_counted(group, "relaxed") / tokens,
        open=_counted(group, "open") / tokens,
        looped=sum(loops.values()),
        looped_p=exact_pairs([(loops[key], base_loops[key]) for key in both]),
        distinct_p=signed_ranks(list(distinct.values())),
        measures={
            name: Measure(_mean(list(each.values())), len(each), paired(each, base.get(name, {})))
            for name, each in own.items()
        },
    )
    found.worse = list(_worse(found, sum(base_loops[key] for key in both)))
    return found


def _values(
    group: Sequence[RunRecord], asked: dict[int | str, Question], scorer: Any
) -> dict[str, _Values]:
    """Every figure of every question, by the figure's name."""
    found: dict[str, dict[int | str, list[float]]] = {}
    said: dict[int | str, list[Sequence[int]]] = {}
    for record in group:
        said.setdefault(record.question_id, []).append(record.turns[0].tokens)
        for name, value in _measured(record.turns[0], asked[record.question_id], scorer):
            found.setdefault(name, {}).setdefault(record.question_id, []).append(value)
    for q, texts in said.items():
        if len(texts) > 1:
            found.setdefault(VARIETY, {})[q] = [variety(texts)]
    return {name: {q: _mean(seeds) for q, seeds in each.items()} for name, each in found.items()}


def _measured(turn: TimedAnswer, question: Question, scorer: Any) -> Iterator[tuple[str, float]]:
    yield NATS, _mean(turn.nats)
    distinct = distinct_4(turn.tokens)
    yield DISTINCT, distinct
    yield LOOPS, float(distinct < LOOPED)
    what = question.check_of(0)
    if what is not None:
        yield what["kind"], float(bool(turn.check))
    told = question.reference[0] if question.reference else None
    if scorer is not None and isinstance(told, str) and told:
        yield ROUGE, float(scorer.score(told, turn.text)["rougeL"].fmeasure)


def _scorer() -> Any:
    """Scores ROUGE-L (F1); None where `rouge-score` is not installed."""
    if importlib.util.find_spec("rouge_score") is None:
        return None
    from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415 - optional

    return RougeScorer(["rougeL"], use_stemmer=True)


def distinct_4(tokens: Sequence[int]) -> float:
    """Share of 4-grams that are different ones; 1 where there are none."""
    grams = _grams(tokens)
    return len(set(grams)) / len(grams) if grams else 1.0


def variety(texts: Sequence[Sequence[int]]) -> float:
    """Different 4-grams of all texts together over the sum of each one's; 1 where no two share one."""
    each = [set(_grams(tokens)) for tokens in texts]
    return len(set().union(*each)) / sum(map(len, each)) if any(each) else 1.0


def _grams(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    return list(zip(*(tokens[i:] for i in range(4)), strict=False))


def _worse(found: Figures, base_looped: int) -> Iterator[str]:
    """What is worse than the control beyond chance: looped answers, repetition, nats over the bound, references, checks."""
    if found.looped > base_looped and found.looped_p < LEVEL:
        yield "looped"
    if found.measures[DISTINCT].over.mean < 0.0 and found.distinct_p < LEVEL:
        yield DISTINCT
    if found.measures[NATS].over.low > NATS_BOUND:
        yield NATS
    for name, measure in found.measures.items():
        if name not in (NATS, DISTINCT, LOOPS) and measure.over.high < 0.0:
            yield name


def _counted(group: Sequence[RunRecord], name: str) -> int:
    return sum(int(record.turns[0].speculation[name]) for record in group)


def _length(group: Sequence[RunRecord]) -> float:
    return sum(len(r.turns[0].tokens) for r in group) / max(1, _counted(group, "rounds"))


def _answer(record: RunRecord) -> tuple[int | str, int]:
    return record.question_id, record.repeat


def _looped(group: Sequence[RunRecord]) -> dict[tuple[int | str, int], bool]:
    return {_answer(r): distinct_4(r.turns[0].tokens) < LOOPED for r in group}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


_SEEN = (NATS, LOOPS, DISTINCT, VARIETY)


def verdict(found: Sequence[Figures], variants: Sequence[Variant]) -> str:
    """Which rule the data support: the one that brings most of those that are not worse; and what they could show.

    A rule that answered fewer questions than the control is not a candidate.
    """
    control = found[0]
    margins = {v.name for v in variants if v.margin is not None and "random" not in v.extras}
    rules = [f for f in found if f.who in margins and f.answers >= control.answers]
    if not rules:
        return "No margin rule was measured."
    fine = [f for f in rules if not f.worse]
    best = max(fine or rules, key=lambda f: f.gain)
    bad = ", ".join(f"{f.who} ({_brings(f)}: {', '.join(f.worse)})" for f in rules if f.worse)
    if fine:
        text = (
            f"Of the margin rules that are in nothing worse than {control.who} as far as {best.answers} answers can "
            f"show, {best.who} brings most: {best.length:.2f} tokens a verify, {_brings(best)}."
        ) + (f" Worse are {bad}." if bad else "")
    else:
        text = f"Every margin rule is worse than {control.who} in something, {bad}; the data support strict."
    shown = [f"in {n} of {best.measures[n].over.seen:.3f}" for n in _SEEN if n in best.measures]
    return f"{text} The sample shows, four times of five, a difference {', '.join(shown)}."


def _brings(found: Figures) -> str:
    return f"{100 * (found.gain - 1):+.0f} %"
