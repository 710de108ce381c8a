"""Figures from records: speed-ups by category with their spread, and paired intervals."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, erfc, sqrt
from operator import attrgetter
from statistics import geometric_mean, median

import msgspec
import numpy as np

from pyspec.measure.records import RunRecord, TimedAnswer

TOTAL = "total"


class Speed(msgspec.Struct):
    """A mode or peer on one category, or on all.

    rate: tokens a second after the first token, all questions together, times being medians over
    repeats. speed_up: rate over plain decoding's. low, mid, high: quartiles and median of the
    single questions' speed-ups.
    """

    rate: float
    speed_up: float
    low: float
    mid: float
    high: float


class Summary(msgspec.Struct):
    """A mode or peer over all questions. geomean: of the categories' speed-ups.

    answer_s: mean seconds of a whole answer, prompt included.
    other: share of the generation's time outside llama.cpp's decodes, None for peers.
    """

    who: str
    peer: bool
    exact: bool
    questions: int
    speeds: dict[str, Speed]
    geomean: float
    first_ms: float
    acceptance: float | None = None
    mean_length: float | None = None
    relaxed: float | None = None
    other: float | None = None
    answer_s: float = 0.0


def geomean(values: Sequence[float]) -> float:
    """Geometric mean; 0 where a value is not positive or there is none."""
    return geometric_mean(values) if values and min(values) > 0.0 else 0.0


class _Cost(msgspec.Struct):
    """One question's answer, repeats joined: tokens after the first ones, and their seconds."""

    category: str
    tokens: float
    seconds: float


def costs(records: Sequence[RunRecord]) -> dict[int | str, _Cost]:
    """By question: tokens and seconds, as medians over repeats, without failed records."""
    groups: dict[int | str, list[RunRecord]] = {}
    for record in records:
        if not record.error:
            groups.setdefault(record.question_id, []).append(record)
    out = {}
    for question, group in groups.items():
        tokens = median(sum(max(0, len(t.tokens) - 1) for t in r.turns) for r in group)
        seconds = median(sum(t.decode_s for t in r.turns) for r in group)
        if tokens > 0 and seconds > 0:
            out[question] = _Cost(group[0].category, tokens, seconds)
    return out


def compare(own: dict[int | str, _Cost], base: dict[int | str, _Cost]) -> dict[str, Speed]:
    """Speeds by category and in total, on the questions that both answered."""
    both = [question for question in own if question in base]
    groups: dict[str, list[int | str]] = {}
    for question in both:
        groups.setdefault(own[question].category, []).append(question)
    if both:
        groups[TOTAL] = both
    out = {}
    for name, group in groups.items():
        ratios = [_rate([own[q]]) / _rate([base[q]]) for q in group]
        rate, plain = _rate([own[q] for q in group]), _rate([base[q] for q in group])
        out[name] = Speed(rate, rate / plain, *map(float, np.percentile(ratios, (25, 50, 75))))
    return out


def _rate(group: Sequence[_Cost]) -> float:
    return sum(c.tokens for c in group) / sum(c.seconds for c in group)


def summarise(records: Sequence[RunRecord], base: str = "plain") -> list[Summary]:
    """One summary for each mode and peer, in the order of the file; speed-ups against `base`."""
    by_who: dict[str, list[RunRecord]] = {}
    for record in records:
        by_who.setdefault(record.who, []).append(record)
    own = {who: costs(group) for who, group in by_who.items()}
    against = own.get(base) or next(iter(own.values()), {})
    return [_summary(who, by_who[who], compare(own[who], against)) for who in by_who if own[who]]


def hindsight(summaries: Sequence[Summary]) -> Summary | None:
    """The best strict fixed length of each category, known afterwards; plain is length 0.

    None where fewer than two fixed lengths were measured. A yardstick, not a mode.
    """
    fixed = [s for s in summaries if "fixed:" in s.who and s.exact]
    if len(fixed) < 2:
        return None
    candidates = [*fixed, *(s for s in summaries if s.who == "plain")]
    best = {
        name: max(
            (s.speeds[name] for s in candidates if name in s.speeds), key=attrgetter("speed_up")
        )
        for name in fixed[0].speeds
        if name != TOTAL
    }
    mean = geomean([speed.speed_up for speed in best.values()])
    questions = fixed[0].questions
    return Summary("best fixed, by category", False, True, questions, best, mean, 0.0)


def _summary(who: str, records: Sequence[RunRecord], speeds: dict[str, Speed]) -> Summary:
    turns = [turn for record in records if not record.error for turn in record.turns]
    rounds = _sum(turns, "rounds")
    verified, emitted = _sum(turns, "verified"), sum(len(turn.tokens) for turn in turns)
    timings = [t.speculation["timings"] for t in turns if "timings" in t.speculation]
    spent = sum(x["total_ms"] for x in timings)
    # a later turn finds most of its prompt read: first tokens are compared on first turns
    first = [r.turns[0].first_s for r in records if r.turns and not r.error]
    return Summary(
        who,
        records[0].peer,
        records[0].exact,
        len({r.question_id for r in records if not r.error}),
        speeds,
        geomean([s.speed_up for name, s in speeds.items() if name != TOTAL]),
        1e3 * median(first) if first else 0.0,
        acceptance=_sum(turns, "accepted") / verified if verified else None,
        mean_length=emitted / rounds if rounds else None,
        relaxed=_sum(turns, "relaxed") / emitted if rounds and emitted else None,
        other=sum(x["other_ms"] for x in timings) / spent if spent else None,
        answer_s=sum(turn.total_s for turn in turns) / max(1, len(turns)),
    )


def _sum(turns: Sequence[TimedAnswer], name: str) -> int:
    return sum(int(turn.speculation.get(name, 0)) for turn in turns)


class Interval(msgspec.Struct):
    """Mean of paired differences, its 95 % bootstrap interval (percentiles), and what could have been seen.

    seen: the difference that so many pairs of this spread show four times of five at the 5 % level.
    """

    mean: float
    low: float
    high: float
    seen: float


def paired(
    own: dict[int | str, float], base: dict[int | str, float], resamples: int = 2000
) -> Interval:
    """`own - base` over the questions that both have, which are what is drawn anew, with one seed."""
    values = np.asarray([own[q] - base[q] for q in own if q in base], dtype=np.float64)
    n = values.size
    if n == 0:
        return Interval(0.0, 0.0, 0.0, 0.0)
    draw = np.random.default_rng(0).integers(0, n, (resamples, n))
    low, high = np.percentile(values[draw].mean(axis=1), (2.5, 97.5))
    seen = (1.96 + 0.84) * values.std(ddof=1) / sqrt(n) if n > 1 else 0.0
    return Interval(float(values.mean()), float(low), float(high), float(seen))


def exact_pairs(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Two-sided exact p for paired yes-or-no answers: the binomial test on the pairs that differ (McNemar 1947)."""
    one, other = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    n, few = one + other, min(one, other)
    return min(1.0, 2.0 * sum(comb(n, k) for k in range(few + 1)) / 2.0**n) if n else 1.0


def signed_ranks(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test, normal approximation with ties; zeros left out."""
    values = np.asarray([d for d in differences if d != 0.0], dtype=np.float64)
    n = values.size
    if n < 6:  # fewer cannot reach 5 %
        return 1.0
    _, inverse, counts = np.unique(np.abs(values), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    spread = (ranks**2).sum() / 4.0
    z = (abs(ranks[values > 0].sum() - ranks.sum() / 2.0) - 0.5) / sqrt(spread)
    return min(1.0, erfc(max(0.0, z) / sqrt(2.0)))
