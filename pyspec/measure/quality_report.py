"""The quality page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.measure.quality import (
    DISTINCT,
    LOOPED,
    LOOPS,
    NATS,
    NATS_BOUND,
    QualityResults,
)
from pyspec.measure.report import can_draw, new_axes, save_figure, setup_list, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspec.measure.quality import Figures, Measure
    from pyspec.measure.stats import Interval

_PICTURE = "gain-nats.svg"


def quality_page(results: QualityResults, drawn: Sequence[str] = ()) -> str:
    """The results as Markdown."""
    setup, first = results.setup, results.figures[0]
    control, questions = first.who, first.measures[NATS].questions
    seeds = f" to {questions} questions" * (first.answers > questions)
    intro = (
        f"Made by `{results.command}` on {setup.day}: {first.answers} answers a variant{seeds} where not "
        f"said otherwise, at most {setup.max_tokens} tokens, temperature {setup.temperature:g}; all of a question side by side. "
        f"Nats are of the emitted tokens under the target. Differences are from {control}, paired by question, with "
        "95 % bootstrap intervals over questions; behind them, in brackets, the smallest difference that so many "
        "questions show four times of five. An answer is looped where less than "
        f"{100 * LOOPED:.0f} % of its 4-grams are different; p is of the exact paired test. A variant is worse where more "
        "answers are looped, 4-grams repeated or checks failed than chance explains at 5 %, or nats surely rise by over "
        f"{NATS_BOUND}." + _SAMPLED * bool(setup.temperature)
    )
    parts = [
        f"# {results.title}",
        intro,
        f"**{results.verdict}**",
        variant_table(results.figures),
        _EXPLAINED,
        "## Variety, checks by a program, and references",
        check_table(results.figures),
        *(f"![{name.rpartition('.')[0]}]({name})" for name in drawn),
        "## Setup",
        setup_list(setup),
    ]
    return "\n\n".join(parts) + "\n"


_SAMPLED = (
    " Tokens are drawn from what top-k 40, top-p 0.95 and min-p 0.05 leave, answers of one question and seed with the same "
    "random numbers: where two variants say the same, they go on alike, and after the first difference as strangers. "
    "Variety is the number of different 4-grams in all seeds' answers to a question over the sum of each one's: 1 where no "
    "two seeds share one. A rule that sharpens the target's distribution lowers nats, and variety "
    "too, which counts as worse where chance does not explain it."
)

_EXPLAINED = (
    "`strict` and `plain` differ by rounding alone: batches of other widths. `temp:T` samples at temperature T. `random` "
    "takes the runner-up (above temperature 0 the one of the first two that was not drawn) at open gates at random, "
    "whatever was drafted, as often as the margin rule of the same gate did: deviation alone. `thin` takes the drafted "
    "runner-up p2 / p1 of the time, `lookup=0` never relaxes what lookup drafts, `model` drafts without lookup. Tokens a "
    "verify is what a rule brings; what it is worth in time is on the pages of `pyspec bench`."
)


def save_quality(results: QualityResults, folder: Path) -> None:
    """Write `quality.json` into a folder, and from it the picture and the page `README.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "quality.json").write_bytes(msgspec.json.encode(results) + b"\n")
    drawn = []
    if can_draw():
        points = {f.who: (f.measures[NATS].over.mean, f.gain) for f in results.figures}
        save_figure(_gain_against_nats(points, results.figures[0].who), folder / _PICTURE)
        drawn = [_PICTURE]
    (folder / "README.md").write_text(quality_page(results, drawn), encoding="utf-8")


def _gain_against_nats(points: dict[str, tuple[float, float]], control: str) -> Any:
    """Points: a variant's nats per token over the control's (x) and its tokens a verify over the control's (y)."""
    title = f"what a rule brings and costs, against {control}"
    figure, axes = new_axes(title, "nats a token over the control", "tokens a verify, times")
    for name, (nats, gain) in points.items():
        axes.scatter([nats], [gain], s=16)
        axes.annotate(name, (nats, gain), fontsize="x-small", xytext=(3, 3),
                      textcoords="offset points")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    return figure


def variant_table(found: Sequence[Figures]) -> str:
    """What each variant brings, and what it costs."""
    head = ["", "tokens a verify", "relaxed", "gate open", "nats a token", "over control", "looped, share over control", "p",
            "distinct-4 over control", "rank p", "worse"]  # fmt: skip
    rows = [
        [
            f.who,
            f"{f.length:.2f} ({100 * (f.gain - 1):+.0f} %)",
            f"{100 * f.relaxed:.1f} %",
            f"{100 * f.open:.1f} %",
            f"{f.measures[NATS].mean:.3f}",
            _interval(f.measures[NATS].over),
            f"{f.looped} of {f.answers} {_interval(f.measures[LOOPS].over)}",
            _chance(f.looped_p),
            _shown(f.measures[DISTINCT]),
            _chance(f.distinct_p),
            ", ".join(f.worse) or "-",
        ]
        for f in found
    ]
    return table(head, rows)


def check_table(found: Sequence[Figures]) -> str:
    """The share of each kind of check that passed, and agreement with references, with the differences from the control."""
    shown = (NATS, DISTINCT, LOOPS)  # in the other table
    names = list(dict.fromkeys(n for f in found for n in f.measures if n not in shown))
    if not names:
        return "None of the questions has a check or a reference."
    most = {n: max(f.measures[n].questions for f in found if n in f.measures) for n in names}
    rows = [
        [f.who, *(_shown(f.measures[n]) if n in f.measures else "-" for n in names)] for f in found
    ]
    return table(["", *(f"{n}, {most[n]} questions" for n in names)], rows)


def _chance(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _shown(measure: Measure) -> str:
    return f"{measure.mean:.3f} {_interval(measure.over)}"


def _interval(value: Interval) -> str:
    return f"{value.mean:+.3f} ({value.low:+.3f} to {value.high:+.3f}) [{value.seen:.3f}]"
