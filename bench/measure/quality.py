"""What a rule costs in quality: figures of several variants' answers to the same questions against a control, and their page.

The first variant is the control. By default it is strict verification with forced drafts, so the effect of rounding alone is in
it too. Nats are of the emitted tokens under the target, at the rows they were chosen from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import msgspec

from pyspec.profiling.pictures import new_axes
from pyspec.profiling.questions import Question, grouped
from pyspec.screen.tables import TextTable, table_of

from .chance import Interval, Values, changes, exact_pairs, paired, signed_ranks
from .records import RunRecord, Setup, TimedAnswer
from .report import table, whole_page, write_results
from .tasks import first_check
from .variants import Variant, parse_variants

VARIANTS = (
    "strict+fixed:4,plain,strict+fixed:1,plain+temp:0.3,margin+fixed:4,margin/gap=inf+fixed:4,margin+random,"
    "margin+thin+fixed:4,margin/lookup=0+fixed:4,margin+model+fixed:4"
)
"""Variants that `pyspec quality` compares by default."""

LOOPED = 0.5
"""An answer loops if its share of different 4-grams is below this."""

NATS, DISTINCT, LOOPS, VARIETY, ROUGE = "nats", "distinct-4", "looped", "variety", "ROUGE-L"
JUDGED = "judged nats"
WORSE_UP = (NATS, LOOPS, JUDGED)
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
    control; distinct_p: signed ranks. measures: nats, distinct-4 and the looped share, variety if there are several seeds, nats
    under the judge if there is one, ROUGE-L where questions have references and `rouge-score` is installed, and the share that
    passed for each kind of check. worse: what is worse beyond chance, see `worse_in`.
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


# -- figures ------------------------------------------------------------------------------------------------------------


def figures_of(records: Sequence[RunRecord], questions: Sequence[Question]) -> list[Figures]:
    """Figures of every variant in the records, in their order; the first one is the control."""
    asked = {q.question_id: q for q in questions}
    scorer = new_scorer() if any(q.reference for q in questions) else None
    groups = list(grouped(records, lambda record: record.who).values())
    values = [values_of(group, asked, scorer) for group in groups]
    found = [_figures(group, groups[0], own, values[0]) for group, own in zip(groups, values)]
    return _judged(found)


def _judged(found: Sequence[Figures]) -> list[Figures]:
    rules = sum(one.who.startswith("margin") and "+random" not in one.who for one in found)
    return [msgspec.structs.replace(one, worse=worse_in(one.measures, rules)) for one in found]


def judged_again(results: QualityResults) -> QualityResults:
    """The same figures, judged by the current criterion."""
    figures = _judged(results.figures)
    said = conclusion(figures, parse_variants(",".join(one.who for one in figures)))
    return msgspec.structs.replace(results, figures=figures, verdict=said)


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
    if turn.judged is not None:
        found[JUDGED] = turn.judged
    if (what := first_check(question)) is not None:
        found[what["kind"]] = float(bool(turn.check))
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
    bad = ", ".join(f"{f.who} ({_brings(f)}: {', '.join(f.worse)})" for f in rules if f.worse)
    text = f"Every margin rule is worse than {control.who} in something, {bad}; the data support strict."
    if fine:
        text = (
            f"Of the margin rules that are in nothing worse than {control.who} as far as {best.answers} answers can "
            f"show, {best.who} brings most: {best.length:.2f} tokens a verify, {_brings(best)}."
        )
        text += f" Worse are {bad}." if bad else ""
    shown = [f"in {n} of {best.measures[n].over.seen:.3f}" for n in _SEEN if n in best.measures]
    return f"{text} The sample shows, four times of five, a difference {', '.join(shown)}."


def _brings(found: Figures) -> str:
    return f"{100 * (found.gain - 1):+.0f} %"


# -- the page -----------------------------------------------------------------------------------------------------------


def quality_page(results: QualityResults, pictures: Sequence[str] = ()) -> str:
    """The results as Markdown."""
    setup, first = results.setup, results.figures[0]
    control, questions = first.who, first.measures[NATS].questions
    seeds = f" to {questions} questions" * (first.answers > questions)
    intro = (
        f"Made by `{results.command}` on {setup.day}: {first.answers} answers a variant{seeds} where not "
        f"said otherwise, at most {setup.max_tokens} tokens, temperature {setup.temperature:g}; all of a question side by side. "
        f"Nats are of the emitted tokens under the target{_judge_of(setup)}. Differences are from {control}, paired by "
        "question, with 95 % bootstrap intervals over questions; behind them, in brackets, the smallest difference that so many "
        "questions show four times of five. An answer is looped where less than "
        f"{100 * LOOPED:.0f} % of its 4-grams are different; p is of the exact paired test. A variant is worse in a figure where "
        "the whole interval of its difference is on the bad side, widened for the number of margin rules on the page "
        "(Bonferroni)." + _SAMPLED * bool(setup.temperature)
    )
    parts = [intro, f"**{results.verdict}**", variant_table(results.figures).markdown, _EXPLAINED,
             "## Variety, checks by a program, and references", check_table(results.figures)]  # fmt: skip
    if results.unscored:
        parts.append(
            f"References of {results.unscored} questions were not compared: `rouge-score`, which says how near an answer is "
            "to one, was not installed."
        )
    return whole_page(results.title, parts, pictures, setup)


def _judge_of(setup: Setup) -> str:
    judge = setup.files.get("judge")
    return f", judged nats of the same texts under {judge.name}, by its own tokens" if judge else ""


_SAMPLED = (
    " Tokens are drawn from what top-k 40, top-p 0.95 and min-p 0.05 leave, answers of one question and seed with the same "
    "random numbers (`apart` with others): where two variants say the same, they go on alike, and after the first "
    "difference as strangers. "
    "Variety is the number of different 4-grams in all seeds' answers to a question over the sum of each one's: 1 where no "
    "two seeds share one. A rule that sharpens the target's distribution lowers nats, and variety "
    "too, which counts as worse where chance does not explain it."
)

_EXPLAINED = (
    "`strict` and `plain` differ by rounding alone: batches of other widths. `temp:T` samples at temperature T. `random` "
    "takes the runner-up (above temperature 0 with its noise, as the rule does) at open gates at random, "
    "whatever was drafted, as often as the margin rule of the same gate did: deviation alone. `apart` has llama.cpp draw, and "
    "drafts that are greedy. `thin` takes the drafted "
    "runner-up p2 / p1 of the time, `lookup=0` never relaxes what lookup drafts, `model` drafts without lookup. Tokens a "
    "verify is what a rule brings; what it is worth in time is on the pages of `pyspec bench`."
)


def save_quality(results: QualityResults, folder: Path) -> None:
    """Write `quality.json` into a folder, with the picture and the page `README.md` made from it."""
    write_results(results, folder, "quality.json", _pictures, quality_page)


def _pictures(results: QualityResults) -> dict[str, Any]:
    """Points: a variant's nats per token over the control's (x) and its tokens per verify over the control's (y)."""
    title = f"what a rule brings and costs, against {results.figures[0].who}"
    figure, axes = new_axes(title, "nats a token over the control", "tokens a verify, times")
    for found in results.figures:
        place = found.measures[NATS].over.mean, found.gain
        axes.scatter(*place, s=16)
        axes.annotate(found.who, place, fontsize="x-small", xytext=(3, 3),
                      textcoords="offset points")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    return {"gain-nats.svg": figure}


def variant_table(found: Sequence[Figures]) -> TextTable:
    """What each variant brings and costs."""
    return table_of(found, {
        "": lambda f: f.who,
        "tokens a verify": lambda f: f"{f.length:.2f} ({_brings(f)})",
        "relaxed": lambda f: f"{100 * f.relaxed:.1f} %",
        "gate open": lambda f: f"{100 * f.open:.1f} %",
        "nats a token": lambda f: f"{f.measures[NATS].mean:.3f}",
        "over control": lambda f: _interval(f.measures[NATS].over),
        "looped, share over control": lambda f: f"{f.looped} of {f.answers} {_interval(f.measures[LOOPS].over)}",
        "p": lambda f: _chance(f.looped_p),
        "distinct-4 over control": lambda f: _shown(f.measures[DISTINCT]),
        "rank p": lambda f: _chance(f.distinct_p),
        "worse": lambda f: ", ".join(f.worse) or "-",
    })  # fmt: skip


def check_table(found: Sequence[Figures]) -> str:
    """Share of each kind of check that passed, and agreement with references, with differences from the control."""
    shown = (NATS, DISTINCT, LOOPS)  # in the other table
    names = list(dict.fromkeys(n for f in found for n in f.measures if n not in shown))
    if not names:
        return "Of no question a check or a reference was used."
    most = {n: max(f.measures[n].questions for f in found if n in f.measures) for n in names}
    rows = [[f.who, *(_shown(f.measures.get(n)) for n in names)] for f in found]
    return table(["", *(f"{n}, {most[n]} questions" for n in names)], rows)


def _chance(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _shown(measure: Measure | None) -> str:
    return f"{measure.mean:.3f} {_interval(measure.over)}" if measure else "-"


def _interval(value: Interval) -> str:
    return f"{value.mean:+.3f} ({value.low:+.3f} to {value.high:+.3f}) [{value.seen:.3f}]"
