"""The page of `bench/quality.py`: what each variant brings and costs, as Markdown, as a table, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .chance import Interval
from .quality import DISTINCT, LOOPED, LOOPS, NATS, Figures, Measure, QualityResults, brings
from .report import new_axes, table, table_of, whole_page, write_results


def quality_page(results: QualityResults, pictures: Sequence[str] = ()) -> str:
    """The results as Markdown."""
    setup, first = results.setup, results.figures[0]
    control, questions = first.who, first.measures[NATS].questions
    seeds = f" to {questions} questions" * (first.answers > questions)
    intro = (
        f"Made by `{results.command}` on {setup.day}: {first.answers} answers a variant{seeds} where not "
        f"said otherwise, at most {setup.max_tokens} tokens, temperature {setup.temperature:g}; all of a question side by side. "
        f"Nats are of the emitted tokens under the target. Differences are from {control}, paired by "
        "question, with 95 % bootstrap intervals over questions; behind them, in brackets, the smallest difference that so many "
        "questions show four times of five. An answer is looped where less than "
        f"{100 * LOOPED:.0f} % of its 4-grams are different; p is of the exact paired test. A variant is worse in a figure where "
        "the whole interval of its difference is on the bad side, widened for the number of margin rules on the page "
        "(Bonferroni)." + _SAMPLED * bool(setup.temperature)
    )
    parts = [intro, f"**{results.verdict}**", variant_table(results.figures), _EXPLAINED,
             "## Variety and references", reference_table(results.figures)]  # fmt: skip
    if results.unscored:
        parts.append(
            f"References of {results.unscored} questions were not compared: `rouge-score`, which says how near an answer is "
            "to one, was not installed."
        )
    return whole_page(results.title, parts, pictures, setup)


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
    "verify is what a rule brings; what it is worth in time is on the pages of `bench/compare.py`."
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


def variant_table(found: Sequence[Figures]) -> str:
    """What each variant brings and costs."""
    return table_of(found, {
        "": lambda f: f.who,
        "tokens a verify": lambda f: f"{f.length:.2f} ({brings(f)})",
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


def reference_table(found: Sequence[Figures]) -> str:
    """Variety over seeds and agreement with references, with differences from the control."""
    shown = (NATS, DISTINCT, LOOPS)  # in the other table
    names = list(dict.fromkeys(n for f in found for n in f.measures if n not in shown))
    if not names:
        return "No answer was compared with others or with a reference."
    most = {n: max(f.measures[n].questions for f in found if n in f.measures) for n in names}
    rows = [[f.who, *(_shown(f.measures.get(n)) for n in names)] for f in found]
    return table(["", *(f"{n}, {most[n]} questions" for n in names)], rows)


def _chance(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _shown(measure: Measure | None) -> str:
    return f"{measure.mean:.3f} {_interval(measure.over)}" if measure else "-"


def _interval(value: Interval) -> str:
    return f"{value} [{value.seen:.3f}]"
