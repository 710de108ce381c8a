"""What a rule costs in quality: figures of several variants' answers to the same questions against a control.

The first variant is the control. By default it is strict verification with forced drafts, so the effect of rounding alone is in
it too. Nats are of the emitted tokens under the target, at the rows they were chosen from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

import msgspec

from .chance import Interval, Values, changes, exact_pairs, paired, signed_ranks
from .questions import Question, grouped
from .records import RunRecord, Setup, TimedAnswer
from .variants import Variant

VARIANTS = (
    "strict+fixed:4,plain,strict+fixed:1,plain+temp:0.3,margin+fixed:4,margin/gap=inf+fixed:4,margin+random,"
    "margin+thin+fixed:4,margin/lookup=0+fixed:4,margin+model+fixed:4"
)
"""Variants that `bench/quality.py` compares by default."""

LOOPED = 0.5
"""An answer loops if its share of different 4-grams is below this."""

NATS, DISTINCT, LOOPS, VARIETY, ROUGE = "nats", "distinct-4", "looped", "variety", "ROUGE-L"
WORSE_UP = (NATS, LOOPS)
"""Figures where more is worse."""

LEVEL = 0.05


class Measure(msgspec.Struct):
    """One figure of answers: its mean over questions, how many have it, and its difference from the control."""

    mean: float
    questions: int
    over: Interval


class Figures(msgspec.Struct):
    """One variant's figures.

    length: tokens that a verify of the target brought; gain: length over the control's, on the same answers; relaxed: share of
    tokens; open: share of places where the gate was open; looped: answers that loop; looped_p: exact paired test against the
    control; distinct_p: signed ranks. measures: nats, distinct-4 and the looped share, variety if there are several seeds, and
    ROUGE-L where questions have references and `rouge-score` is installed.
    worse: what is worse beyond chance, see `worse_in`.
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
    """Everything that the quality page says, as `quality.json` next to it.

    unscored: questions whose references were not compared because `rouge-score` is not installed.
    """

    title: str
    command: str
    setup: Setup
    figures: list[Figures]
    verdict: str
    unscored: int = 0


def figures_of(records: Sequence[RunRecord], questions: Sequence[Question]) -> list[Figures]:
    """Figures of every variant in the records, in their order; the first one is the control."""
    asked = {q.question_id: q for q in questions}
    scorer = new_scorer() if any(q.reference for q in questions) else None
    groups = list(grouped(records, lambda record: record.who).values())
    values = [values_of(group, asked, scorer) for group in groups]
    found = [_figures(group, groups[0], own, values[0]) for group, own in zip(groups, values)]
    rules = sum(one.who.startswith("margin") and "+random" not in one.who for one in found)
    return [msgspec.structs.replace(one, worse=worse_in(one.measures, rules)) for one in found]


def _figures(
    group: Sequence[RunRecord],
    control: Sequence[RunRecord],
    own: dict[str, Values],
    base: dict[str, Values],
) -> Figures:
    tokens = max(1, sum(len(record.turns[0].tokens) for record in group))
    loops, base_loops = _looped(group), _looped(control)
    pairs = [(loops[key], base_loops[key]) for key in loops if key in base_loops]
    alike = [r for r in group if r.key[1:] in base_loops]
    measures = {
        name: Measure(fmean(each.values()), len(each), paired(each, base.get(name, {})))
        for name, each in own.items()
    }
    return Figures(
        who=group[0].who,
        answers=len(group),
        length=_length(group),
        gain=_length(alike) / _length([r for r in control if r.key[1:] in loops]),
        relaxed=_counted(group, "relaxed") / tokens,
        open=_counted(group, "open") / tokens,
        looped=sum(loops.values()),
        looped_p=exact_pairs(pairs),
        distinct_p=signed_ranks(changes(own[DISTINCT], base[DISTINCT])),
        measures=measures,
    )


def values_of(
    group: Sequence[RunRecord], asked: Mapping[int | str, Question], scorer: Any
) -> dict[str, Values]:
    """Values by figure, then by question."""
    found: dict[str, Values] = {}
    for q, records in grouped(group, lambda record: record.question_id).items():
        turns = [record.turns[0] for record in records]
        each = [_measured(turn, asked[q], scorer) for turn in turns]
        values = {name: fmean(one[name] for one in each) for name in each[0]}
        if len(turns) > 1:
            values[VARIETY] = variety([turn.tokens for turn in turns])
        for name, value in values.items():
            found.setdefault(name, {})[q] = value
    return found


def _measured(turn: TimedAnswer, question: Question, scorer: Any) -> dict[str, float]:
    distinct = distinct_4(turn.tokens)
    nats = fmean(turn.nats) if turn.nats else 0.0
    found = {NATS: nats, DISTINCT: distinct, LOOPS: float(distinct < LOOPED)}
    if scorer is not None and (told := _told(question)):
        found[ROUGE] = float(scorer.score(told, turn.text)["rougeL"].fmeasure)
    return found


def _told(question: Question) -> str:
    """The first turn's reference, "" for none."""
    told = question.reference[0] if question.reference else ""
    return told if isinstance(told, str) else ""


def unscored(questions: Sequence[Question]) -> int:
    """How many questions have a reference that nothing here can score."""
    return sum(bool(_told(q)) for q in questions) if new_scorer() is None else 0


def new_scorer() -> Any:
    """A ROUGE-L (F1) scorer; None if `rouge-score` is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return RougeScorer(["rougeL"], use_stemmer=True)


def distinct_4(tokens: Sequence[int]) -> float:
    """Share of 4-grams that are different; 1 if there are none."""
    grams = _grams(tokens)
    return len(set(grams)) / len(grams) if grams else 1.0


def variety(texts: Sequence[Sequence[int]]) -> float:
    """Different 4-grams of all texts together over the sum of each text's; 1 if no two share one."""
    each = [set(_grams(tokens)) for tokens in texts]
    return len(set().union(*each)) / sum(map(len, each)) if any(each) else 1.0


def _grams(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    return list(zip(*(tokens[i:] for i in range(4)), strict=False))


def worse_in(measures: Mapping[str, Measure], rules: int) -> list[str]:
    """Figures that are worse than the control's: the whole interval of the paired difference is on the bad side.

    One criterion for every figure: 95 % intervals, widened as Bonferroni's correction for this many rules widens a normal one.
    """
    share = LEVEL / (2 * max(1, rules))
    wider = NormalDist().inv_cdf(1.0 - share) / NormalDist().inv_cdf(1.0 - LEVEL / 2)
    order = [*(n for n in (LOOPS, DISTINCT, NATS) if n in measures), *measures]
    return [n for n in dict.fromkeys(order) if _is_worse(n, measures[n].over, wider)]


def _is_worse(name: str, over: Interval, wider: float) -> bool:
    if name in WORSE_UP:
        return over.mean - wider * (over.mean - over.low) > 0.0
    return over.mean + wider * (over.high - over.mean) < 0.0


def _counted(group: Sequence[RunRecord], name: str) -> int:
    return sum(int(record.turns[0].speculation[name]) for record in group)


def _length(group: Sequence[RunRecord]) -> float:
    return sum(len(r.turns[0].tokens) for r in group) / max(1, _counted(group, "rounds"))


def _looped(group: Sequence[RunRecord]) -> dict[tuple[int | str, int], bool]:
    return {r.key[1:]: distinct_4(r.turns[0].tokens) < LOOPED for r in group}


_SEEN = (NATS, LOOPS, DISTINCT, VARIETY)


def conclusion(found: Sequence[Figures], variants: Sequence[Variant]) -> str:
    """Which rule the data support (of those that are not worse, the one that brings most), and what differences they could show.

    A rule that answered fewer questions than the control is not a candidate.
    """
    control = found[0]
    margins = {v.name for v in variants if v.margin is not None and "random" not in v.extras}
    rules = [f for f in found if f.who in margins and f.answers >= control.answers]
    if not rules:
        return "No margin rule was measured."
    fine = [f for f in rules if not f.worse]
    best = max(fine or rules, key=lambda f: f.gain)
    bad = ", ".join(f"{f.who} ({brings(f)}: {', '.join(f.worse)})" for f in rules if f.worse)
    text = f"Every margin rule is worse than {control.who} in something, {bad}; the data support strict."
    if fine:
        text = (
            f"Of the margin rules that are in nothing worse than {control.who} as far as {best.answers} answers can "
            f"show, {best.who} brings most: {best.length:.2f} tokens a verify, {brings(best)}."
        )
        text += f" Worse are {bad}." if bad else ""
    shown = [f"in {n} of {best.measures[n].over.seen:.3f}" for n in _SEEN if n in best.measures]
    return f"{text} The sample shows, four times of five, a difference {', '.join(shown)}."


def brings(found: Figures) -> str:
    """Tokens a verify over the control's, in percent."""
    return f"{100 * (found.gain - 1):+.0f} %"
