"""Tests whether a rule's losses stay within bounds: chosen on one half of the questions, confirmed once on the other.

Non-inferiority: a rule passes if, for every figure, the upper end of a 95 % interval of its loss is within the bound. On one half
of the questions, the rule with the most tokens per verify is chosen among those whose mean losses are within the bounds. The
other half tests only that rule, once, so nothing has to be corrected for the number of rules. A page of all rules is corrected by
Holm's method.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, stdev

import numpy as np

from .chance import resampled_means, sample_size
from .quality import DISTINCT, LOOPS, NATS, ROUGE, VARIETY, WORSE_UP, new_scorer, values_of
from .questions import Question, grouped
from .records import RunRecord
from .variants import Variant

CHECKS = "checks"
BOUNDS = {
    DISTINCT: 0.01,
    VARIETY: 0.01,
    LOOPS: 0.02,
    NATS: 0.02,
    CHECKS: 0.02,
    ROUGE: 0.02,
}
"""Largest loss that counts as none: shares of 4-grams, of answers, nats per token, shares of checks passed."""

ALWAYS = (DISTINCT, LOOPS, NATS)
"""Figures that every answer has."""

FEWEST = 50
"""Fewest questions in the confirming half: with fewer, an interval says nothing and no rule is allowed."""

Losses = dict[str, dict["int | str", float]]
"""By figure and question, the loss against the control; above 0 is worse."""


@dataclass(frozen=True)
class Loss:
    """One figure's mean loss over questions, the upper end of its 95 % interval, and the questions needed to pass.

    p: chance of a loss as large as the bound or larger; needed: questions with which a rule without any loss passes four times in
    five.
    """

    mean: float
    upper: float
    bound: float
    p: float
    questions: int
    needed: int

    @property
    def holds(self) -> bool:
        """Whether the loss is within its bound, allowing for chance."""
        return self.upper <= self.bound


@dataclass(frozen=True)
class RuleTrial:
    """What one half of the questions says about a rule."""

    who: str
    gain: float
    losses: dict[str, Loss]

    @property
    def fits(self) -> bool:
        """Whether its mean losses are within the bounds."""
        return all(loss.mean <= loss.bound for loss in self.losses.values())

    @property
    def passes(self) -> bool:
        """Whether it is shown to be within all bounds."""
        enough = all(
            loss.questions >= FEWEST for name, loss in self.losses.items() if name in ALWAYS
        )
        return (
            enough
            and set(ALWAYS) <= set(self.losses)
            and all(x.holds for x in self.losses.values())
        )


def losses_of(
    own: Sequence[RunRecord], control: Sequence[RunRecord], asked: Mapping[int | str, Question]
) -> Losses:  # fmt: skip
    """Losses of answers against the control's to the same questions; checks of all kinds are one figure."""
    mine, base = (_figures(records, asked) for records in (own, control))
    found: Losses = {}
    for name, values in mine.items():
        sign = 1.0 if name in WORSE_UP else -1.0
        both = {
            q: sign * (value - base[name][q])
            for q, value in values.items()
            if q in base.get(name, {})
        }
        if both:
            found[name] = both
    return found


def _figures(records: Sequence[RunRecord], asked: Mapping[int | str, Question]) -> Losses:
    scorer = new_scorer() if any(q.reference for q in asked.values()) else None
    values = values_of(records, asked, scorer)
    kinds = [name for name in values if name not in BOUNDS]
    if kinds:
        values[CHECKS] = {q: value for kind in kinds for q, value in values.pop(kind).items()}
    return values


def half_of(question: int | str) -> int:
    """0 for questions that choose a rule, 1 for those that confirm it."""
    return zlib.crc32(str(question).encode()) % 2


def try_rule(who: str, gain: float, losses: Losses, half: int | None = None) -> RuleTrial:
    """Evaluate a rule on one half of the questions, or on all."""
    each = {
        name: [loss for q, loss in values.items() if half is None or half_of(q) == half]
        for name, values in losses.items()
    }
    return RuleTrial(who, gain, {name: _loss(v, name) for name, v in each.items() if v})


_RESAMPLES = 4000


def _loss(values: Sequence[float], name: str) -> Loss:
    bound = BOUNDS[name]
    n, mean = len(values), fmean(values)
    means = resampled_means(values, _RESAMPLES)
    spread = stdev(values) if n > 1 else 0.0
    p = (1 + int((means >= bound).sum())) / (1 + _RESAMPLES)
    if spread or name not in (LOOPS, CHECKS):
        upper = float(np.percentile(means, 97.5))
        return Loss(mean, upper, bound, p, n, sample_size(spread, bound))
    # yes-or-no figures: what n equal answers exclude at 95 %, and their chance if the true share were the bound
    return Loss(mean, mean + 3.0 / n, bound, (1.0 - bound) ** n, n, ceil(3.0 / bound))


@dataclass(frozen=True)
class HalvesResult:
    """The result of choosing on one half and confirming on the other. chosen: None if no rule was worth confirming."""

    tried: list[RuleTrial]
    chosen: RuleTrial | None
    confirmed: RuleTrial | None

    @property
    def passed(self) -> bool:
        """Whether the chosen rule was confirmed."""
        return self.confirmed is not None and self.confirmed.passes


def by_halves(
    records: Sequence[RunRecord], questions: Sequence[Question], variants: Sequence[Variant]
) -> HalvesResult:  # fmt: skip
    """Choose the rule that brings most on one half of the questions, and confirm it on the other; the control comes first."""
    asked = {q.question_id: q for q in questions}
    groups = grouped(records, lambda record: record.who)
    control = groups[variants[0].name]
    rules = [
        v.name for v in variants[1:] if v.margin is not None and not v.extras and v.name in groups
    ]
    losses = {who: losses_of(groups[who], control, asked) for who in rules}
    tried = [try_rule(who, gain_of(groups[who], control, 0), losses[who], 0) for who in rules]
    fine = [trial for trial in tried if trial.fits and trial.gain > 1.0]
    if not fine:
        return HalvesResult(tried, None, None)
    chosen = max(fine, key=lambda trial: trial.gain)
    gain = gain_of(groups[chosen.who], control, 1)
    return HalvesResult(tried, chosen, try_rule(chosen.who, gain, losses[chosen.who], 1))


def gain_of(
    own: Sequence[RunRecord], control: Sequence[RunRecord], half: int | None = None
) -> float:
    """Tokens per verify over the control's on the same questions, of one half or of all."""
    keys = {r.key[1:] for r in own} & {r.key[1:] for r in control}
    kept = {key for key in keys if half is None or half_of(key[0]) == half}

    def length(records: Sequence[RunRecord]) -> float:
        turns = [r.turns[0] for r in records if r.key[1:] in kept]
        return sum(len(t.tokens) for t in turns) / max(
            1, sum(int(t.speculation["rounds"]) for t in turns)
        )

    return length(own) / length(control) if kept else 1.0


def sentence(found: HalvesResult) -> str:
    """The verdict as a sentence."""
    if found.chosen is None or found.confirmed is None:
        return "No rule was worth confirming: each loses more than its bounds on the first half. Strict."
    trial = found.confirmed
    if trial.passes:
        return f"{trial.who} is within all bounds on the second half, at {100 * (trial.gain - 1):+.0f} % tokens a verify."
    short = [
        f"{name} (up to {loss.upper:.3f}, bound {loss.bound:g}; {loss.needed} questions could show it, {loss.questions} did not)"
        for name, loss in trial.losses.items() if not loss.holds
    ]  # fmt: skip
    if not short:
        most = max((loss.questions for loss in trial.losses.values()), default=0)
        asked = f"{most} questions of the second half were answered, and {FEWEST} have to be"
        return f"{trial.who} is to be confirmed still: {asked}. Strict."
    return f"{trial.who} is not shown to be within {', '.join(short)}. Strict."
